"""A broker, made as a Cluster's objects say, is let in by a real etcd that asks for TLS, a certificate and a login."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.secured_etcd import PASSWORD, USER, Secured, running_secured_etcd
from operator_.bodies import cluster
from ottla_broker.exit_codes import ExitCode
from ottla_operator import cluster_secret
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.pod_parts import Images
from ottla_operator.resources import objects_of
from ottla_operator.specs import Meta

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with running_secured_etcd(tmp_path_factory.mktemp("secured")) as made:
        yield made


class Pod:
    """As much of a broker's pod as a process on this machine can be: its files, its variables, its folders."""

    def __init__(self, spec: dict[str, Any], secrets: dict[str, dict[str, str]], root: Path) -> None:
        body = cluster(**spec)
        made = objects_of(Meta.of(body), ClusterSpec.of(body), Images("broker:1", "etcd:1"))
        self.config = next(each for each in made if each["kind"] == "ConfigMap")["data"]["ottla.properties"]
        (stateful_set,) = (each for each in made if each["kind"] == "StatefulSet")
        pod = stateful_set["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        self._secrets = secrets
        self._root = root
        self._volumes = {each["name"]: each for each in pod["volumes"]}
        self.environ = {
            each["name"]: secrets[found["name"]][found["key"]]
            for each in container["env"]
            if (found := each.get("valueFrom", {}).get("secretKeyRef"))
        }
        for mount in container["volumeMounts"]:
            self._mount(mount)

    def _mount(self, mount: dict[str, Any]) -> None:
        """The files of a projected volume; in the settings, folders of the pod become folders of the test."""
        if mount["mountPath"] == "/tmp":
            return
        folder = self._root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True)
        self.config = self.config.replace(f"{mount['mountPath']}/", f"{folder}/")
        volume = self._volumes.get(mount["name"], {})
        for key, content in self._secrets.get(volume.get("secret", {}).get("secretName"), {}).items():
            (folder / key).write_text(content)
        for source in volume.get("projected", {}).get("sources", ()):
            for item in source["secret"]["items"]:
                content = self._secrets[source["secret"]["name"]][item["key"]]
                (folder / item["path"]).write_text(content)

    def start(self, ready: Path) -> subprocess.Popen[str]:
        (self._root / "ottla.properties").write_text(self.config)
        flags = [
            part
            for edge in ("kafka", "grpc", "http", "internal")
            for part in ("--set", f"{edge}.listener=127.0.0.1:0")
        ]
        command = [sys.executable, "-P", "-m", "ottla_broker", "--ready-file", str(ready)]
        return subprocess.Popen(
            [*command, "--config", str(self._root / "ottla.properties"), *flags],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **self.environ},
        )


def test_a_broker_of_the_cluster_is_let_in(secured: Secured, tmp_path: Path) -> None:
    secrets = {
        "roots": {"etcd.pem": secured.pem("ca").read_text()},
        "etcd-client": {
            "tls.crt": secured.pem("client").read_text(),
            "tls.key": secured.pem("client-key").read_text(),
        },
        "etcd-login": {"username": USER, "password": PASSWORD},
        "main-cluster-secret": cluster_secret.secret(Meta.of(cluster()), "0123456789abcdef" * 4)[
            "stringData"
        ],
    }
    etcd = {
        "endpoints": [secured.etcd.endpoint],
        "tls": {
            "ca": {"secretName": "roots", "key": "etcd.pem"},
            "certificate": {"secretName": "etcd-client"},
        },
        "login": {"secretName": "etcd-login"},
    }
    pod = Pod({"brokers": 1, "etcd": etcd}, secrets, tmp_path / "pod")
    assert PASSWORD not in pod.config
    ready = tmp_path / "ready"
    process = pod.start(ready)
    deadline = time.monotonic() + 60
    while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    let_in = ready.exists()
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert let_in and process.returncode == ExitCode.OK, said
