"""What people write: the specs of Cluster, Topic and ConsumerGroup, typed, with their defaults. [P]

`of(body)` reads a resource as the API server holds it. The API server has checked it against the schemas of
`crds.py` already; what is checked here again is what those cannot say, and whatever an older schema let through.
`InvalidSpec` is one sentence for a condition. Unknown fields are the schemas' business (they are pruned there).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ottla_operator import external_etcd
from ottla_operator.external_etcd import ExternalEtcd

GROUP = "ottla.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

#: `"true"`: look and report, change nothing.
PAUSED = f"{GROUP}/paused"

#: Kafka's rule for names of topics.
TOPIC_NAME = r"^[a-zA-Z0-9._-]{1,249}$"
_TOPIC_NAME = re.compile(TOPIC_NAME)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Settings that follow from the pod and its place; a value of the user's would contradict it.
RESERVED_SETTINGS = (
    "broker.id",
    "cluster.name",
    *external_etcd.SETTINGS,
    "grpc.advertised",
    "grpc.listener",
    "http.listener",
    "kafka.advertised",
    "kafka.listener",
    "log.dirs",
)
ASSIGNORS = ("range", "roundrobin", "cooperative-sticky")
RESET_TARGETS = ("earliest", "latest", "time", "offsets")


class InvalidSpec(ValueError):
    """One sentence about what cannot be used."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What every resource has."""

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    deleting: bool
    paused: bool

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Meta:
        meta = body["metadata"]
        return cls(
            body.get("kind", ""),
            meta.get("namespace", ""),
            meta["name"],
            meta.get("uid", ""),
            meta.get("generation", 0),
            meta.get("creationTimestamp") or "",
            bool(meta.get("deletionTimestamp")),
            (meta.get("annotations") or {}).get(PAUSED) == "true",
        )

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def owner_reference(self) -> dict[str, Any]:
        """Without blockOwnerDeletion: that would need a right to update finalizers."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


@dataclass(frozen=True, slots=True)
class Volume:
    size: str = "10Gi"
    storage_class: str | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    volumes: tuple[Volume, ...] = (Volume(),)
    #: emptyDir: gone with the pod.
    ephemeral: bool = False
    #: The claims go with the Cluster.
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
    """What people add to pods."""

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
    #: None: ours, as `managed_etcd` describes it.
    external_etcd: ExternalEtcd | None = None
    managed_etcd: ManagedEtcd = ManagedEtcd()
    pod: PodSpec = PodSpec()
    max_unavailable: int = 1
    scrape_annotations: bool = True

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> ClusterSpec:
        spec = body.get("spec") or {}
        etcd = spec.get("etcd") or {}
        config = _texts(spec.get("config"))
        for name in config:
            if name in RESERVED_SETTINGS:
                raise InvalidSpec(f"config sets {name}, which the operator sets itself.")
        for name in ("tls", "login"):
            if etcd.get(name) is not None and not etcd.get("endpoints"):
                raise InvalidSpec(f"etcd.{name} is for an etcd of yours: name its etcd.endpoints as well.")
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
        )


@dataclass(frozen=True, slots=True)
class TopicSpec:
    cluster: str
    topic: str
    partitions: int = 1
    #: None: the brokers' default.
    replicas: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    retain: bool = False

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> TopicSpec:
        spec = body.get("spec") or {}
        topic = spec.get("topicName") or body["metadata"]["name"]
        if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
            raise InvalidSpec(f"{topic!r} cannot be the name of a topic; use up to 249 of a-z A-Z 0-9 . _ -")
        return cls(
            _cluster(spec),
            topic,
            spec.get("partitions", 1),
            spec.get("replicas"),
            _texts(spec.get("config")),
            spec.get("deletionPolicy", "Delete") == "Retain",
        )


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Asked for once, under a name; another name asks again."""

    id: str
    to: str
    wait: bool = False
    #: None: the topics of the group's spec, and those it has committed offsets for.
    topics: tuple[str, ...] | None = None
    time_ms: int | None = None
    #: (topic, partition) -> offset
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of everything that decides the outcome; tells a changed request under a used name."""
        said = [self.to, self.topics, self.time_ms, sorted(self.offsets.items())]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> OffsetReset:
        to = spec.get("to", "")
        if to not in RESET_TARGETS:
            raise InvalidSpec(f"offsetReset.to is {to!r}; choose one of {', '.join(RESET_TARGETS)}.")
        time_ms = None
        if to == "time":
            time_ms = milliseconds(spec.get("time", ""))
        offsets = {(row["topic"], row["partition"]): row["offset"] for row in spec.get("offsets") or ()}
        if to == "offsets" and not offsets:
            raise InvalidSpec("offsetReset.to is offsets, and offsetReset.offsets names none.")
        topics = spec.get("topics")
        return cls(
            spec["id"],
            to,
            spec.get("whenActive", "Refuse") == "Wait",
            None if topics is None else tuple(topics),
            time_ms,
            offsets if to == "offsets" else {},
        )


@dataclass(frozen=True, slots=True)
class GroupSpec:
    cluster: str
    group: str
    topics: tuple[str, ...] = ()
    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    reset: OffsetReset | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> GroupSpec:
        spec = body.get("spec") or {}
        reset = spec.get("offsetReset")
        return cls(
            _cluster(spec),
            spec.get("groupId") or body["metadata"]["name"],
            tuple(spec.get("topics") or ()),
            spec.get("assignor"),
            spec.get("sessionTimeoutMs"),
            spec.get("rebalanceTimeoutMs"),
            None if reset is None else OffsetReset.of(reset),
        )


def milliseconds(text: str) -> int:
    """RFC 3339 to milliseconds since 1970."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidSpec(f"{text!r} is not a time with its zone; write it like 2026-01-31T12:00:00Z.")
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _cluster(spec: Mapping[str, Any]) -> str:
    name = (spec.get("cluster") or {}).get("name")
    if not name:
        raise InvalidSpec("cluster.name is missing.")
    return str(name)


def _texts(values: Mapping[str, Any] | None) -> dict[str, str]:
    """Values as text: YAML makes 1000 a number and true a boolean, and people mean the same by them."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in (values or {}).items()
    }
