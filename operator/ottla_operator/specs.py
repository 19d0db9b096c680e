"""Typed specs of Topic, ConsumerGroup and Rebalance, with their defaults (Cluster: cluster_spec.py). [P]

`of(body)` reads a resource as the API server stores it. The API server has validated it against the schemas of
`crds.py`. `of` checks what a schema cannot express, and what an older schema accepted.
`InvalidSpec` is one sentence for a condition. The schemas prune unknown fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

GROUP = "ottla.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

#: `"true"`: report the status, change nothing.
PAUSED = f"{GROUP}/paused"

#: Kafka's rule for names of topics.
TOPIC_NAME = r"^[a-zA-Z0-9._-]{1,249}$"
#: Kafka's rule for group.instance.id.
INSTANCE_ID = TOPIC_NAME
_TOPIC_NAME = re.compile(TOPIC_NAME)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Kafka's of classic groups that brokers do not have; "range" and "sticky" exist for both kinds of groups.
CLASSIC_ASSIGNORS = ("roundrobin", "cooperative-sticky")
BROKER_SIDE_ASSIGNORS = ("uniform", "consistent-hash", "broadcast", "pinned")
ASSIGNORS = ("range", "sticky", *CLASSIC_ASSIGNORS, *BROKER_SIDE_ASSIGNORS)
#: These have no use for pins: classic members assign themselves, and with broadcast every member reads everything.
UNPINNABLE = (*CLASSIC_ASSIGNORS, "broadcast")
SCALE_TARGETS = ("Deployment", "StatefulSet")
RESET_TARGETS = ("earliest", "latest", "time", "offsets")


class InvalidSpec(ValueError):
    """A value that cannot be used, in one sentence."""


@dataclass(frozen=True, slots=True)
class Meta:
    """Metadata that every resource has."""

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

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def owner_reference(self) -> dict[str, Any]:
        """Without blockOwnerDeletion, which would need permission to update finalizers."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


@dataclass(frozen=True, slots=True)
class ClusterRef:
    """The Cluster that a resource names."""

    name: str
    #: None: the resource's own.
    namespace: str | None = None

    def place(self, own: str) -> tuple[str, str]:
        """(namespace, name), for a resource in the namespace `own`."""
        return self.namespace or own, self.name

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> ClusterRef:
        given = spec.get("cluster") or {}
        if not given.get("name"):
            raise InvalidSpec("cluster.name is missing.")
        return cls(str(given["name"]), given.get("namespace"))


@dataclass(frozen=True, slots=True)
class TopicSpec:
    cluster: ClusterRef
    topic: str
    partitions: int = 1
    #: None: the brokers' default.
    replicas: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    retain: bool = False
    #: partition -> brokers, the preferred leader first; the operator moves other placements back.
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> TopicSpec:
        spec = body.get("spec") or {}
        topic = spec.get("topicName") or body["metadata"]["name"]
        if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
            raise InvalidSpec(f"{topic!r} is not a valid topic name; use up to 249 of a-z A-Z 0-9 . _ -")
        return cls(
            ClusterRef.of(spec),
            topic,
            spec.get("partitions", 1),
            spec.get("replicas"),
            texts_of(spec.get("config")),
            spec.get("deletionPolicy", "Delete") == "Retain",
            _assignment(spec),
        )


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A one-time request, identified by its id; a new id is a new request."""

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
        """Digest of everything that decides the outcome; detects a changed request with a used id."""
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
            raise InvalidSpec("offsetReset.to is offsets, but offsetReset.offsets is empty.")
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
class ScaleSpec:
    """Scales the consumers of a group by its lag."""

    #: Deployment or StatefulSet, and its name.
    kind: str
    name: str
    max: int
    min: int = 1
    lag_per_replica: int | None = None
    lag_seconds: int | None = None
    stabilization_s: int = 300

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> ScaleSpec:
        target = spec.get("targetRef") or {}
        made = cls(
            target.get("kind", "Deployment"),
            target.get("name", ""),
            spec.get("max", 0),
            spec.get("min", 1),
            spec.get("lagPerReplica"),
            spec.get("lagSeconds"),
            spec.get("stabilizationSeconds", 300),
        )
        if made.kind not in SCALE_TARGETS or not made.name:
            raise InvalidSpec("scale.targetRef needs the name of a Deployment or a StatefulSet.")
        if not 0 <= made.min <= made.max or made.max < 1:
            raise InvalidSpec(f"scale.min is {made.min} and scale.max {made.max}; use 0 <= min <= max.")
        if made.lag_per_replica is None and made.lag_seconds is None:
            raise InvalidSpec("scale needs lagPerReplica or lagSeconds.")
        return made


@dataclass(frozen=True, slots=True)
class GroupSpec:
    cluster: ClusterRef
    group: str
    topics: tuple[str, ...] = ()
    #: One of ASSIGNORS, or a custom one.
    assignor: str | None = None
    #: Of the assignor sticky.
    tolerance: float | None = None
    #: (topic, partition) -> instance id of the member that reads it
    pins: Mapping[tuple[str, int], str] = field(default_factory=dict)
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    reset: OffsetReset | None = None
    scale: ScaleSpec | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> GroupSpec:
        spec = body.get("spec") or {}
        reset, scale = spec.get("offsetReset"), spec.get("scale")
        return cls(
            ClusterRef.of(spec),
            spec.get("groupId") or body["metadata"]["name"],
            tuple(spec.get("topics") or ()),
            spec.get("assignor") or spec.get("customAssignor"),
            (spec.get("assignorParameters") or {}).get("tolerance"),
            {(row["topic"], row["partition"]): row["instanceId"] for row in spec.get("pins") or ()},
            spec.get("sessionTimeoutMs"),
            spec.get("rebalanceTimeoutMs"),
            None if reset is None else OffsetReset.of(reset),
            None if scale is None else ScaleSpec.of(scale),
        )


@dataclass(frozen=True, slots=True)
class RebalanceSpec:
    cluster: str
    #: Brokers to empty.
    drain: tuple[int, ...] = ()
    approved: bool = False
    stopped: bool = False

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> RebalanceSpec:
        spec = body.get("spec") or {}
        return cls(
            ClusterRef.of(spec).name,
            tuple(spec.get("drain") or ()),
            bool(spec.get("approved")),
            bool(spec.get("stopped")),
        )


def _assignment(spec: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    found = {}
    for row in spec.get("assignment") or ():
        partition, brokers = row["partition"], tuple(row["brokers"])
        if partition >= spec.get("partitions", 1):
            raise InvalidSpec(f"assignment names partition {partition}, which the topic does not have.")
        if not brokers or len(set(brokers)) != len(brokers):
            raise InvalidSpec(f"assignment of partition {partition} needs brokers, each of them once.")
        if len(brokers) != spec.get("replicas", len(brokers)):
            raise InvalidSpec(
                f"assignment of partition {partition} names {len(brokers)} brokers, but replicas is "
                f"{spec['replicas']}."
            )
        found[partition] = brokers
    return found


def milliseconds(text: str) -> int:
    """RFC 3339 to milliseconds since 1970."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidSpec(f"{text!r} is not a time with a time zone; write it like 2026-01-31T12:00:00Z.")
    return (time - _EPOCH) // timedelta(milliseconds=1)


def texts_of(values: Mapping[str, Any] | None) -> dict[str, str]:
    """Values as text: YAML parses 1000 as a number and true as a boolean; both mean the same as the quoted text."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in (values or {}).items()
    }
