"""The chart's ServiceMonitor as a scrape configuration of a Prometheus without Kubernetes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from observe.monitoring_files import CHART

HELM = Path(sys.executable).parent / "helm"
NAMESPACE, CLUSTER = "shop", "main"
_FIELDS = {"sourceLabels": "source_labels", "targetLabel": "target_label", "replacement": "replacement"}


def relabelings() -> list[dict[str, Any]]:
    """What the Prometheus operator makes of the ServiceMonitor's own relabelings."""
    wanted = ("--set=metrics.serviceMonitor.enabled=true", "--show-only=templates/monitoring.yaml")
    done = subprocess.run(
        [HELM, "template", "demo", str(CHART), *wanted],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (monitor,) = (each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    return [{_FIELDS[name]: value for name, value in each.items()} for each in endpoint["relabelings"]]


def scrape_job(targets: Sequence[str]) -> dict[str, Any]:
    """Brokers as service discovery finds them, with the labels that the operator adds to every target."""
    found = [
        {
            "targets": [target],
            "labels": {
                "namespace": NAMESPACE,
                "pod": f"{CLUSTER}-brokers-{number}",
                "__meta_kubernetes_pod_name": f"{CLUSTER}-brokers-{number}",
                "__meta_kubernetes_service_label_ottla_dev_cluster": CLUSTER,
            },
        }
        for number, target in enumerate(targets)
    ]
    return {"job_name": "brokers", "static_configs": found, "relabel_configs": relabelings()}
