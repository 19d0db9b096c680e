"""The objects that the run puts into the cluster beside the chart's: its resources, a client, Spark's pods. [A]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ottla_e2e.images import ROOT, pull_policy, reference
from ottla_e2e.kube import Object

CLUSTER = "main"
KAFKA = f"{CLUSTER}-bootstrap:9092"
GRPC = f"{CLUSTER}-bootstrap:9192"
CLIENT = "kafka-client"
_PODS = Path(__file__).with_name("pods")
_API = "ottla.dev/v1alpha1"

#: As strict as the chart's own pods.
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def namespace(name: str) -> Object:
    """A namespace that enforces the restricted Pod Security Standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def chart_values() -> Object:
    registry, _, tag = reference("").rpartition("/")
    image = {"tag": tag.lstrip(":")}
    return {
        "images": {
            "registry": registry,
            "pullPolicy": pull_policy(),
            "broker": image,
            "operator": image,
            "etcd": reference("etcd"),
        },
        # The run waits for status changes, so a status must not be half a minute old.
        "operator": {"resyncSeconds": 5, "groupResyncSeconds": 2, "secrets": True, "nodes": True},
        "cluster": {
            "enabled": True,
            "name": CLUSTER,
            "spec": {"rack": {}, "storage": {"volumes": [{"size": "1Gi"}], "deleteClaims": True}},
        },
    }


def resource(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def secured_client(name: str, secret: str) -> Object:
    """A pod with a stock Kafka client and the Secret of a User."""
    container = _container("client", "kafka-client", mounts=[{"name": "user", "mountPath": "/user"}])
    pod = _pod([container], {"user": {"secret": {"secretName": secret, "defaultMode": 0o440}}})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}


def topic(name: str, partitions: int, **config: str) -> Object:
    spec = {"cluster": {"name": CLUSTER}, "partitions": partitions, "replicas": 3, "config": config}
    return {"apiVersion": _API, "kind": "Topic", "metadata": {"name": name}, "spec": spec}


def group(name: str, of: str, reset: Object | None = None) -> Object:
    spec: Object = {"cluster": {"name": CLUSTER}, "topics": [of]}
    if reset is not None:
        spec["offsetReset"] = reset
    return {"apiVersion": _API, "kind": "ConsumerGroup", "metadata": {"name": name}, "spec": spec}


def scaled_consumers(stabilization_s: int) -> list[Object]:
    """The sample, with the image of this run: a Topic, a StatefulSet of consumers, a ConsumerGroup that scales it."""
    found: list[Object] = list(
        yaml.safe_load_all((ROOT / "manifests/samples/scaled-consumers.yaml").read_text())
    )
    for each in found:
        if each["kind"] == "StatefulSet":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            container |= {"image": reference("ottla-broker"), "imagePullPolicy": pull_policy()}
        if each["kind"] == "ConsumerGroup":
            each["spec"]["scale"]["stabilizationSeconds"] = stabilization_s
    return found


def programs() -> Object:
    """The programs from `pods/`, as files."""
    files = {path.name: path.read_text() for path in sorted(_PODS.glob("*.py"))}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "programs"}, "data": files}


def client() -> Object:
    """A pod with a stock Kafka client, to run programs in."""
    container = _container("client", "kafka-client")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": CLIENT}, "spec": _pod([container])}


# ------------------------------------------------------------------ Spark


def spark() -> list[Object]:
    """Rights and storage as a user applies them."""
    texts = [(ROOT / f"manifests/spark/{name}.yaml").read_text() for name in ("rights", "storage")]
    return [each for text in texts for each in yaml.safe_load_all(text)]


def job(name: str, command: list[str]) -> Object:
    """A Job that runs a program in Spark's image, with its storage."""
    mounts = [{"name": "data", "mountPath": "/data"}]
    container = _container("job", "ottla-spark", args=command, mounts=mounts)
    pod = _pod([container], {"data": {"persistentVolumeClaim": {"claimName": "spark-data"}}})
    template = {"metadata": {"labels": {"job": name}}, "spec": pod | {"restartPolicy": "Never"}}
    spec = {"backoffLimit": 0, "activeDeadlineSeconds": 600, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def _container(
    name: str, image: str, args: list[str] | None = None, mounts: list[Object] | None = None
) -> Object:
    made: Object = {
        "name": name,
        "image": reference(image),
        "imagePullPolicy": pull_policy(),
        # Spark makes folders where it is started.
        "workingDir": "/tmp",
        "securityContext": _RESTRICTED,
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "programs", "mountPath": "/programs"},
            *(mounts or []),
        ],
    }
    if args is not None:
        made["args"] = args
    return made


def _pod(containers: list[Object], volumes: dict[str, Any] | None = None) -> Object:
    own: dict[str, Any] = {"tmp": {"emptyDir": {}}, "programs": {"configMap": {"name": "programs"}}}
    return {
        "securityContext": _POD_SECURITY,
        "terminationGracePeriodSeconds": 1,
        "containers": containers,
        "volumes": [{"name": name, **source} for name, source in (own | (volumes or {})).items()],
    }
