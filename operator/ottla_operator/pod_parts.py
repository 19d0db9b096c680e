"""What the pods of brokers and of the managed etcd have alike: labels, security, volumes. [P]"""

from __future__ import annotations

from typing import Any

from ottla_operator.specs import Meta, Storage

MANAGER = "ottla-operator"
MANAGED_BY = {"app.kubernetes.io/managed-by": MANAGER}
#: On everything that belongs to a Cluster.
CLUSTER_LABEL = "ottla.dev/cluster"

#: No user of the image or the host; volumes are given to its group.
_USER = 10001
POD_SECURITY: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    # A volume with a million files is not walked through at each start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def labels_of(meta: Meta, component: str) -> dict[str, str]:
    """Those that select; they can never change, so they are few."""
    return {
        "app.kubernetes.io/name": "ottla",
        "app.kubernetes.io/component": component,
        CLUSTER_LABEL: meta.name,
    }


def metadata(meta: Meta, name: str, component: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": meta.namespace,
        "labels": {**labels_of(meta, component), **MANAGED_BY},
        "ownerReferences": [meta.owner_reference()],
    }


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
