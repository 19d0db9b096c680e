"""Typed spec of a Cluster, with its defaults: brokers, volumes, etcd and pods. [P]

As in `specs.py`, the API server has validated it; this module checks what a schema cannot express.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla_operator import external_etcd
from ottla_operator.access_spec import Access
from ottla_operator.external_etcd import ExternalEtcd
from ottla_operator.schemas import QUANTITY
from ottla_operator.specs import InvalidSpec, texts_of

#: Kubernetes' name for the label of a node's zone.
TOPOLOGY_KEY = "topology.kubernetes.io/zone"
_QUANTITY = re.compile(QUANTITY)

#: Settings that follow from the pod; a user's value would contradict it.
RESERVED_SETTINGS = (
    "advertised.grpc.listeners",
    "advertised.listeners",
    "broker.id",
    "rack.file",
    "cluster.name",
    "cluster.secret.file",
    *external_etcd.SETTINGS,
    "internal.security.protocol",
    "internal.ssl.key.location",
    "internal.ssl.keystore.location",
    "internal.ssl.server.name",
    "internal.ssl.truststore.location",
    "grpc.advertised",
    "grpc.listener",
    "grpc.listeners",
    "http.listener",
    "http.security.protocol",
    "internal.advertised",
    "internal.listener",
    "kafka.advertised",
    "kafka.listener",
    "listener.security.protocol.map",
    "listeners",
    "log.dirs",
    "sasl.users.file",
    "ssl.client.auth",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.principal.mapping.rules",
    "ssl.truststore.location",
)


@dataclass(frozen=True, slots=True)
class Volume:
    size: str = "10Gi"
    storage_class: str | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    volumes: tuple[Volume, ...] = (Volume(),)
    #: emptyDir: deleted with the pod.
    ephemeral: bool = False
    #: Delete the claims with the Cluster.
    delete_claims: bool = False

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Storage:
        volumes = tuple(
            Volume(each.get("size", "10Gi"), each.get("storageClassName"))
            for each in spec.get("volumes") or [{}]
        )
        return cls(volumes, bool(spec.get("ephemeral", False)), bool(spec.get("deleteClaims", False)))


@dataclass(frozen=True, slots=True)
class PodSpec:
    """The user's additions to pods."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    topology_spread: Sequence[Mapping[str, Any]] = ()
    priority_class: str | None = None

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> PodSpec:
        return cls(
            spec.get("labels") or {},
            spec.get("annotations") or {},
            spec.get("nodeSelector") or {},
            spec.get("tolerations") or (),
            spec.get("affinity") or {},
            spec.get("topologySpreadConstraints") or (),
            spec.get("priorityClassName"),
        )


@dataclass(frozen=True, slots=True)
class RackSpec:
    #: Label of the nodes.
    topology_key: str = TOPOLOGY_KEY

    @classmethod
    def of(cls, spec: Mapping[str, Any] | None) -> RackSpec | None:
        return None if spec is None else cls(spec.get("topologyKey", TOPOLOGY_KEY))


@dataclass(frozen=True, slots=True)
class ManagedEtcd:
    replicas: int = 1
    image: str | None = None
    storage: Storage = Storage((Volume("2Gi"),))
    resources: Mapping[str, Any] = field(default_factory=dict)
    pod: PodSpec = PodSpec()

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> ManagedEtcd:
        return cls(
            spec.get("replicas", 1),
            spec.get("image"),
            Storage.of(spec.get("storage") or {"volumes": [{"size": "2Gi"}]}),
            spec.get("resources") or {},
            PodSpec.of(spec.get("pod") or {}),
        )


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    brokers: int = 3
    image: str | None = None
    image_pull_policy: str = "IfNotPresent"
    storage: Storage = Storage()
    resources: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    #: None: the operator runs the etcd that `managed_etcd` describes.
    external_etcd: ExternalEtcd | None = None
    managed_etcd: ManagedEtcd = ManagedEtcd()
    pod: PodSpec = PodSpec()
    max_unavailable: int = 1
    scrape_annotations: bool = True
    #: New brokers get their share of the replicas.
    spread: bool = True
    access: Access = field(default_factory=Access)
    #: None: `broker.rack` is what `config` says.
    rack: RackSpec | None = None

    @property
    def topology_key(self) -> str:
        """Label of the nodes over whose values brokers spread."""
        return TOPOLOGY_KEY if self.rack is None else self.rack.topology_key

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> ClusterSpec:
        spec = body.get("spec") or {}
        etcd = spec.get("etcd") or {}
        config = texts_of(spec.get("config"))
        for name in config:
            if name in RESERVED_SETTINGS:
                raise InvalidSpec(f"config sets {name}, which the operator sets itself.")
        for name in ("tls", "login"):
            if etcd.get(name) is not None and not etcd.get("endpoints"):
                raise InvalidSpec(f"etcd.{name} is for an external etcd: set etcd.endpoints too.")
        if spec.get("rack") is not None and "broker.rack" in config:
            raise InvalidSpec("rack and config.broker.rack both set the rack of the brokers; use one.")
        check_quantities("resources", spec.get("resources"))
        check_quantities("etcd.managed.resources", (etcd.get("managed") or {}).get("resources"))
        return cls(
            brokers=spec.get("brokers", 3),
            image=spec.get("image"),
            image_pull_policy=spec.get("imagePullPolicy", "IfNotPresent"),
            storage=Storage.of(spec.get("storage") or {}),
            resources=spec.get("resources") or {},
            config=config,
            external_etcd=ExternalEtcd.of(etcd),
            managed_etcd=ManagedEtcd.of(etcd.get("managed") or {}),
            pod=PodSpec.of(spec.get("pod") or {}),
            max_unavailable=(spec.get("podDisruptionBudget") or {}).get("maxUnavailable", 1),
            scrape_annotations=(spec.get("metrics") or {}).get("annotations", True),
            spread=spec.get("rebalance", "Spread") == "Spread",
            access=Access.of(spec, config),
            rack=RackSpec.of(spec.get("rack")),
        )


def check_quantities(where: str, resources: Mapping[str, Any] | None) -> None:
    """An older schema accepted any text, and the API server answers an invalid quantity with an internal error."""
    for part in ("requests", "limits"):
        for name, amount in ((resources or {}).get(part) or {}).items():
            if not _QUANTITY.fullmatch(str(amount)):
                raise InvalidSpec(
                    f"{where}.{part}.{name} is {amount!r}; write a quantity like 500m, 2 or 512Mi."
                )
