"""The files for Spark on Kubernetes agree with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "manifests/spark"


def read(name: str) -> Any:
    (found,) = yaml.safe_load_all((FOLDER / name).read_text())
    return found


def settings() -> dict[str, str]:
    lines = [line.split(None, 1) for line in (FOLDER / "spark.conf").read_text().splitlines()]
    return {line[0]: line[1].strip() for line in lines if line and not line[0].startswith("#")}


def test_an_application_and_a_submission_run_the_same_pods() -> None:
    spec = read("application.yaml")["spec"]
    submitted = {key: value for key, value in settings().items() if not key.endswith("podTemplateFile")}
    assert spec["sparkConf"] == submitted
    for kind in ("driver", "executor"):
        template, own = read(f"{kind}.yaml"), spec[f"{kind}Spec"]["podTemplateSpec"]
        assert own["spec"] == template["spec"]
        assert own["metadata"] == template["metadata"]
        (container,) = template["spec"]["containers"]
        assert settings()[f"spark.kubernetes.{kind}.podTemplateContainerName"] == container["name"]
        assert settings()[f"spark.kubernetes.{kind}.podTemplateFile"] == f"manifests/spark/{kind}.yaml"


def test_names_fit_together() -> None:
    rights = list(yaml.safe_load_all((FOLDER / "rights.yaml").read_text()))
    (account,) = (each["metadata"]["name"] for each in rights if each["kind"] == "ServiceAccount")
    assert settings()["spark.kubernetes.authenticate.driver.serviceAccountName"] == account
    claim = read("storage.yaml")["metadata"]["name"]
    for kind in ("driver", "executor"):
        volume = f"spark.kubernetes.{kind}.volumes.persistentVolumeClaim.data"
        assert settings()[f"{volume}.options.claimName"] == claim
    labels = read("podmonitor.yaml")["spec"]["selector"]["matchLabels"]
    assert labels == read("driver.yaml")["metadata"]["labels"] | {"spark-role": "driver"}
