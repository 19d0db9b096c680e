"""Common parts of broker and etcd pods: labels, images, placement, security, volumes. [P]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ottla_operator.cluster_spec import TOPOLOGY_KEY, PodSpec, Storage
from ottla_operator.specs import Meta

MANAGER = "ottla-operator"
MANAGED_BY = {"app.kubernetes.io/managed-by": MANAGER}
#: On every object of a Cluster.
CLUSTER_LABEL = "ottla.dev/cluster"
COMPONENT_LABEL = "app.kubernetes.io/component"
#: Set on every pod of a StatefulSet by Kubernetes.
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"

#: A user that exists neither in the image nor on the host; its group owns the volumes.
_USER = 10001
POD_SECURITY: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    # Do not walk through a volume with a million files at each start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True, slots=True)
class Images:
    """Default images for Clusters that name none, and the pull secrets for registries."""

    broker: str
    etcd: str
    pull_secrets: tuple[str, ...] = ()


def labels_of_all(meta: Meta) -> dict[str, str]:
    """On all pods of a Cluster."""
    return {"app.kubernetes.io/name": "ottla", CLUSTER_LABEL: meta.name}


def labels_of(meta: Meta, component: str) -> dict[str, str]:
    """Selector labels; they can never change, so they are few."""
    return {**labels_of_all(meta), COMPONENT_LABEL: component}


def metadata(meta: Meta, name: str, component: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": meta.namespace,
        "labels": {**labels_of(meta, component), **MANAGED_BY},
        "ownerReferences": [meta.owner_reference()],
    }


def placement(
    meta: Meta, component: str, pod: PodSpec, images: Images, zone: str = TOPOLOGY_KEY
) -> dict[str, Any]:
    """Where the pods may run. By default they avoid each other's nodes and zones, if possible."""
    own = {"labelSelector": {"matchLabels": labels_of(meta, component)}}
    apart = {"weight": 100, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", **own}}
    zones = {
        "maxSkew": 1,
        "topologyKey": zone,
        "whenUnsatisfiable": "ScheduleAnyway",
        **own,
    }
    made: dict[str, Any] = {
        "affinity": dict(pod.affinity)
        or {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "topologySpreadConstraints": [dict(each) for each in pod.topology_spread] or [zones],
    }
    if pod.node_selector:
        made["nodeSelector"] = dict(pod.node_selector)
    if pod.tolerations:
        made["tolerations"] = [dict(each) for each in pod.tolerations]
    if pod.priority_class:
        made["priorityClassName"] = pod.priority_class
    if images.pull_secrets:
        made["imagePullSecrets"] = [{"name": name} for name in images.pull_secrets]
    return made


def volumes_of(
    storage: Storage, root: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """(volumes, claim templates, mounts) for `root`/0, `root`/1, …"""
    volumes, claims, mounts = [], [], []
    for number, volume in enumerate(storage.volumes):
        name = f"data-{number}"
        mounts.append({"name": name, "mountPath": f"{root}/{number}"})
        if storage.ephemeral:
            volumes.append({"name": name, "emptyDir": {"sizeLimit": volume.size}})
            continue
        spec: dict[str, Any] = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": volume.size}},
        }
        if volume.storage_class:
            spec["storageClassName"] = volume.storage_class
        claims.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
    return volumes, claims, mounts


def env_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def env_value(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}
