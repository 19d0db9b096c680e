"""A Cluster's spec -> the Kubernetes objects of its brokers, as plain dicts. [P]

Called by `clusters.py`, which applies them in the order given. The same spec gives the same bytes; golden tests
check them. `etcd_resources.py` has the objects of the managed etcd.

The broker id is the ordinal of its pod. The advertised address is `<pod>.<namespace>.svc`, a Service per broker whose
IP outlives the pod. A client that connects while the broker restarts is refused at once and retries; packets to the IP
of a deleted pod would be lost until the client's own timeout (librdkafka: 30 s). Addresses of pods that are not ready
are published, because brokers must find each other before any is ready, and because a broker leads and serves before
its readiness probe succeeds. The operator replaces pods (OnDelete), in the order and at the pace of `rolling.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla_operator import cluster_secret, etcd_resources, network_policy, racks, secured
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.external_etcd import ExternalEtcd
from ottla_operator.internal_tls import OFF, ON, PHASE
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
from ottla_operator.secured import GRPC_PORT, KAFKA_PORT
from ottla_operator.specs import Meta

HTTP_PORT = 9292
#: Graceful stop: leaderships move, logs are closed. The broker's own limit is below Kubernetes' limit.
_GRACE_S = 60
_SHUTDOWN_MS = 50_000
#: Connected clients learn new leaders within milliseconds; idle ones after their second attempt to connect, which
#: librdkafka makes after 0.6 s at most.
_LINGER_MS = 1000
#: A managed etcd starts together with the brokers, and its image may have to be pulled. A broker that waits too long
#: logs the reason and exits before the startup probe kills it.
_ETCD_WAIT_S = 60
_STARTUP_S = 120
_DATA = "/var/lib/ottla"
#: In the ConfigMap: the settings that all brokers have.
COMMON = "ottla.properties"
CONFIG_HASH = "ottla.dev/config-hash"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Names:
    """Names that derive from the Cluster's name."""

    namespace: str
    cluster: str

    @property
    def brokers(self) -> str:
        return f"{self.cluster}-broker"

    @property
    def headless(self) -> str:
        return f"{self.cluster}-brokers"

    @property
    def bootstrap(self) -> str:
        return f"{self.cluster}-bootstrap"

    def bootstrap_address(self, port: int) -> str:
        return f"{self.bootstrap}.{self.namespace}.svc:{port}"


def objects_of(
    meta: Meta, spec: ClusterSpec, images: Images, pods: int | None = None, internal: str | None = None
) -> list[Object]:
    """All objects, in the order to apply: objects that pods refer to come before the pods.

    `pods` is the number of brokers to run, if it differs from the spec's: brokers that are drained still run.
    `internal` is the phase of TLS between brokers, if it is not the one of the spec.
    """
    running = spec.brokers if pods is None else pods
    phase = internal or (ON if spec.access.internal_tls else OFF)
    config = config_map(meta, spec, phase, running)
    made = [config, headless_service(meta, spec), bootstrap_service(meta, spec)]
    made += [broker_service(meta, spec, broker_id) for broker_id in range(running)]
    if spec.access.external:
        made += [secured.external_service(meta, spec.access.external, each) for each in range(running)]
    if spec.access.network_policy:
        made += network_policy.policies(meta, spec.access, etcd=not spec.external_etcd)
    made.append(disruption_budget(meta, spec))
    if not spec.external_etcd:
        made += etcd_resources.objects_of(meta, spec, images)
    restarting = {
        COMMON: config["data"][COMMON],
        **secured.restarting(spec.access),
        **racks.restarting(spec.rack),
    }
    return [*made, stateful_set(meta, spec, images, restarting, running, phase)]


def names_of(meta: Meta) -> Names:
    return Names(meta.namespace, meta.name)


def broker_settings(meta: Meta, spec: ClusterSpec, internal: str = OFF) -> dict[str, str]:
    """The operator's defaults, overridden by the user's settings, overridden by the operator's fixed settings."""
    replicas = min(3, spec.brokers)
    etcd = spec.external_etcd or ExternalEtcd(etcd_resources.endpoints(meta, spec))
    ours = {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
        "offsets.topic.replication.factor": str(replicas),
        "log.format": "json",
        "shutdown.timeout.ms": str(_SHUTDOWN_MS),
        "shutdown.linger.ms": str(_LINGER_MS),
        "etcd.connect.timeout.ms": str(_ETCD_WAIT_S * 1000),
    }
    fixed = {
        # One etcd may serve many clusters; a recreated Cluster finds its keys again.
        "cluster.name": _cluster_name(meta),
        **etcd.settings(),
        "kafka.listener": f"0.0.0.0:{KAFKA_PORT}",
        "grpc.listener": f"0.0.0.0:{GRPC_PORT}",
        "http.listener": f"0.0.0.0:{HTTP_PORT}",
        **cluster_secret.settings(),
        **secured.settings(spec.access, meta, internal, spec.config),
        # A subdirectory of the volume: the root has a lost+found, and may be unmounted.
        "log.dirs": ",".join(f"{_DATA}/{number}/log" for number in range(len(spec.storage.volumes))),
    }
    if spec.access.needs_login:
        for replaced in ("kafka.listener", "grpc.listener"):  # by `listeners` and `grpc.listeners`
            del fixed[replaced]
    return {**ours, **spec.config, **fixed}


def _cluster_name(meta: Meta) -> str:
    """Brokers accept at most 100 characters; a hash keeps shortened names distinct."""
    name = f"{meta.namespace}.{meta.name}"
    if len(name) <= 100:
        return name
    return f"{name[:83]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def config_map(meta: Meta, spec: ClusterSpec, internal: str = OFF, brokers: int | None = None) -> Object:
    """`brokers` is the number of brokers that run, if it differs from the spec's."""
    lines = [f"{name}={value}" for name, value in sorted(broker_settings(meta, spec, internal).items())]
    common = "\n".join(lines) + "\n"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(meta, f"{meta.name}-config", "broker"),
        "data": {
            COMMON: common,
            **secured.settings_files(spec.access, meta, brokers or spec.brokers, common),
        },
    }


def headless_service(meta: Meta, spec: ClusterSpec) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(meta, names_of(meta).headless, "broker"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels_of(meta, "broker"),
            "ports": [
                _port("kafka", KAFKA_PORT),
                _port("grpc", GRPC_PORT),
                _port("http", HTTP_PORT),
                *cluster_secret.service_ports(),
                *(_port(name, port) for name, port in secured.service_ports(spec.access)),
            ],
        },
    }


def bootstrap_service(meta: Meta, spec: ClusterSpec) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(meta, names_of(meta).bootstrap, "broker"),
        "spec": {
            "type": "ClusterIP",
            "selector": labels_of(meta, "broker"),
            "ports": _client_ports(spec, operator=True),
        },
    }


def broker_service(meta: Meta, spec: ClusterSpec, broker_id: int) -> Object:
    """The advertised address of one broker; named like its pod."""
    pod = f"{names_of(meta).brokers}-{broker_id}"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(meta, pod, "broker"),
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": True,
            "selector": {**labels_of(meta, "broker"), POD_NAME_LABEL: pod},
            "ports": _client_ports(spec, operator=True),
        },
    }


def _client_ports(spec: ClusterSpec, *, operator: bool) -> list[Object]:
    """Plaintext ports stay when the listeners are off: clients are refused at once instead of waiting."""
    return [
        _port("kafka", KAFKA_PORT),
        _port("grpc", GRPC_PORT),
        *(_port(name, port) for name, port in secured.service_ports(spec.access, operator=operator)),
    ]


def disruption_budget(meta: Meta, spec: ClusterSpec) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(meta, names_of(meta).brokers, "broker"),
        "spec": {
            "maxUnavailable": spec.max_unavailable,
            "selector": {"matchLabels": labels_of(meta, "broker")},
        },
    }


def stateful_set(
    meta: Meta, spec: ClusterSpec, images: Images, config: Mapping[str, str], pods: int, internal: str
) -> Object:
    volumes, claims, mounts = volumes_of(spec.storage, _DATA)
    delete = "Delete" if spec.storage.delete_claims else "Retain"
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(meta, names_of(meta).brokers, "broker")
        | ({} if internal == OFF else {"annotations": {PHASE: internal}}),
        "spec": {
            "replicas": pods,
            "serviceName": names_of(meta).headless,
            # All at once: brokers wait for each other.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": delete, "whenScaled": "Retain"},
            "selector": {"matchLabels": labels_of(meta, "broker")},
            "volumeClaimTemplates": claims,
            "template": {
                "metadata": {
                    "labels": {**spec.pod.labels, **labels_of(meta, "broker"), **MANAGED_BY},
                    "annotations": {
                        **spec.pod.annotations,
                        **(_scrape_annotations() if spec.scrape_annotations else {}),
                        CONFIG_HASH: _digest(config),
                    },
                },
                "spec": {
                    **placement(meta, "broker", spec.pod, images, spec.topology_key),
                    "terminationGracePeriodSeconds": _GRACE_S,
                    # Services named ottla… would otherwise put OTTLA_… variables into the pod.
                    "enableServiceLinks": False,
                    "automountServiceAccountToken": False,
                    "securityContext": POD_SECURITY,
                    "containers": [_broker_container(meta, spec, images, mounts, internal)],
                    "volumes": [
                        {"name": "config", "configMap": {"name": f"{meta.name}-config"}},
                        {"name": "tmp", "emptyDir": {}},
                        *cluster_secret.volumes(meta),
                        *(racks.volumes(meta) if spec.rack else []),
                        *secured.volumes(spec.access, meta, internal),
                        *(spec.external_etcd.volumes() if spec.external_etcd else []),
                        *volumes,
                    ],
                },
            },
        },
    }


def _broker_container(
    meta: Meta, spec: ClusterSpec, images: Images, mounts: list[Object], internal: str
) -> Object:
    address = "$(POD_NAME).$(POD_NAMESPACE).svc"
    return {
        "name": "broker",
        "image": spec.image or images.broker,
        "imagePullPolicy": spec.image_pull_policy,
        "env": [
            env_field("POD_NAME", "metadata.name"),
            env_field("POD_NAMESPACE", "metadata.namespace"),
            env_field("OTTLA_BROKER_ID", "metadata.labels['apps.kubernetes.io/pod-index']"),
            *(
                secured.env(spec.access, address)
                if spec.access.needs_login
                else [
                    env_value("OTTLA_KAFKA_ADVERTISED", f"{address}:{KAFKA_PORT}"),
                    env_value("OTTLA_GRPC_ADVERTISED", f"{address}:{GRPC_PORT}"),
                ]
            ),
            *cluster_secret.env(),
            *(racks.env() if spec.rack else []),
            env_value("OTTLA_CONFIG", f"/etc/ottla/{secured.settings_file(spec.access)}"),
            *(spec.external_etcd.env() if spec.external_etcd else []),
        ],
        "ports": [
            *(
                [{"name": "kafka", "containerPort": KAFKA_PORT}, {"name": "grpc", "containerPort": GRPC_PORT}]
                if spec.access.plaintext
                else []
            ),
            {"name": "http", "containerPort": HTTP_PORT},
            *cluster_secret.container_ports(),
            *({"name": name, "containerPort": port} for name, port in secured.ports(spec.access)),
        ],
        # A broker answers /healthz during recovery after a crash; the first answer needs only the process and etcd.
        "startupProbe": _probe("/healthz", period_s=1, failures=_STARTUP_S),
        "livenessProbe": _probe("/healthz", period_s=10, failures=6),
        "readinessProbe": _probe("/readyz", period_s=2, failures=2),
        # Puts the reason why a broker exited into the pod's status, and so into the Cluster's.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": dict(spec.resources),
        "securityContext": RESTRICTED,
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/ottla", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *cluster_secret.mounts(),
            *(racks.mounts() if spec.rack else []),
            *secured.mounts(spec.access, internal),
            *(spec.external_etcd.mounts() if spec.external_etcd else []),
            *mounts,
        ],
    }


def _scrape_annotations() -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(HTTP_PORT),
        "prometheus.io/path": "/metrics",
    }


def _probe(path: str, *, period_s: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5 if period_s >= 5 else 2,
        "failureThreshold": failures,
    }


def _port(name: str, port: int) -> Object:
    return {"name": name, "port": port, "targetPort": name}


def _digest(data: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
