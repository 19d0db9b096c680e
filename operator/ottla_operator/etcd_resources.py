"""The managed etcd of a Cluster: one or three members, each with its volume. [P]

The member list is fixed when the Cluster is created (the CRD enforces it), so members are never added or removed.
Kubernetes replaces members one by one and waits until each is ready, which for etcd means that there is a leader.

Members find each other by pod name. Brokers connect to one Service per member. Its IP stays when the
pod is replaced, so no DNS cache returns a stale address.
"""

from __future__ import annotations

from typing import Any

from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.pod_parts import (
    MANAGED_BY,
    POD_NAME_LABEL,
    POD_SECURITY,
    RESTRICTED,
    Images,
    env_field,
    env_value,
    labels_of,
    metadata,
    placement,
    volumes_of,
)
from ottla_operator.specs import Meta

_CLIENT_PORT, _PEER_PORT = 2379, 2380
_DATA = "/var/lib/etcd"
#: Ten thousand partitions are ~10 MiB of keys; the rest is for history between two compactions.
_QUOTA_BYTES = 2 * 1024 * 1024 * 1024


def name_of(meta: Meta) -> str:
    return f"{meta.name}-etcd"


def endpoints(meta: Meta, spec: ClusterSpec) -> tuple[str, ...]:
    """Addresses of the members, for brokers."""
    names = (f"{name_of(meta)}-{n}" for n in range(spec.managed_etcd.replicas))
    return tuple(f"{name}.{meta.namespace}.svc:{_CLIENT_PORT}" for name in names)


def objects_of(meta: Meta, spec: ClusterSpec, images: Images) -> list[dict[str, Any]]:
    made = [_service(meta), *(_member_service(meta, n) for n in range(spec.managed_etcd.replicas))]
    if spec.managed_etcd.replicas > 1:
        made.append(_budget(meta))
    return [*made, _stateful_set(meta, spec, images)]


def _hosts(meta: Meta, spec: ClusterSpec) -> list[str]:
    name = name_of(meta)
    return [f"{name}-{n}.{name}.{meta.namespace}.svc" for n in range(spec.managed_etcd.replicas)]


def _service(meta: Meta) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(meta, name_of(meta), "etcd"),
        "spec": {
            "clusterIP": "None",
            # Members must find each other before they elect a leader, and are ready only with a leader.
            "publishNotReadyAddresses": True,
            "selector": labels_of(meta, "etcd"),
            "ports": [
                {"name": "client", "port": _CLIENT_PORT, "targetPort": "client"},
                {"name": "peer", "port": _PEER_PORT, "targetPort": "peer"},
            ],
        },
    }


def _member_service(meta: Meta, member: int) -> dict[str, Any]:
    """The Service through which brokers reach one member; named like its pod."""
    pod = f"{name_of(meta)}-{member}"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(meta, pod, "etcd"),
        "spec": {
            "type": "ClusterIP",
            # Brokers connect as soon as the member listens, not when its probe has succeeded.
            "publishNotReadyAddresses": True,
            "selector": {**labels_of(meta, "etcd"), POD_NAME_LABEL: pod},
            "ports": [{"name": "client", "port": _CLIENT_PORT, "targetPort": "client"}],
        },
    }


def _budget(meta: Meta) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(meta, name_of(meta), "etcd"),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels_of(meta, "etcd")}},
    }


def _stateful_set(meta: Meta, spec: ClusterSpec, images: Images) -> dict[str, Any]:
    etcd = spec.managed_etcd
    volumes, claims, mounts = volumes_of(etcd.storage, _DATA)
    delete = "Delete" if etcd.storage.delete_claims or spec.storage.delete_claims else "Retain"
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(meta, name_of(meta), "etcd"),
        "spec": {
            "replicas": etcd.replicas,
            "serviceName": name_of(meta),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": delete, "whenScaled": "Retain"},
            "selector": {"matchLabels": labels_of(meta, "etcd")},
            "volumeClaimTemplates": claims,
            "template": {
                "metadata": {
                    "labels": {**etcd.pod.labels, **labels_of(meta, "etcd"), **MANAGED_BY},
                    "annotations": dict(etcd.pod.annotations),
                },
                "spec": {
                    **placement(meta, "etcd", etcd.pod, images),
                    "terminationGracePeriodSeconds": 30,
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "securityContext": POD_SECURITY,
                    "containers": [_container(meta, spec, etcd.image or images.etcd, mounts)],
                    "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
                },
            },
        },
    }


def _container(meta: Meta, spec: ClusterSpec, image: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    host = f"$(POD_NAME).{name_of(meta)}.{meta.namespace}.svc"
    members = [
        f"{name_of(meta)}-{n}=http://{address}:{_PEER_PORT}" for n, address in enumerate(_hosts(meta, spec))
    ]
    settings = {
        "ETCD_DATA_DIR": f"{_DATA}/0/member",
        "ETCD_LISTEN_CLIENT_URLS": f"http://0.0.0.0:{_CLIENT_PORT}",
        "ETCD_LISTEN_PEER_URLS": f"http://0.0.0.0:{_PEER_PORT}",
        "ETCD_ADVERTISE_CLIENT_URLS": f"http://{host}:{_CLIENT_PORT}",
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"http://{host}:{_PEER_PORT}",
        "ETCD_INITIAL_CLUSTER": ",".join(members),
        "ETCD_INITIAL_CLUSTER_STATE": "new",
        # The token keeps members of two Clusters from joining each other.
        "ETCD_INITIAL_CLUSTER_TOKEN": f"{meta.namespace}.{meta.name}",
        "ETCD_QUOTA_BACKEND_BYTES": str(_QUOTA_BYTES),
    }
    return {
        "name": "etcd",
        "image": image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["etcd"],
        "env": [
            env_field("POD_NAME", "metadata.name"),
            env_value("ETCD_NAME", "$(POD_NAME)"),
            *(env_value(name, value) for name, value in settings.items()),
        ],
        "ports": [
            {"name": "client", "containerPort": _CLIENT_PORT},
            {"name": "peer", "containerPort": _PEER_PORT},
        ],
        # /health fails without a leader. Then a member is not ready, but must not be killed.
        "livenessProbe": {
            "tcpSocket": {"port": "client"}, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5,
        },
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "client"},
            "periodSeconds": 2, "failureThreshold": 2, "timeoutSeconds": 2,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": dict(spec.managed_etcd.resources),
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
    }  # fmt: skip
