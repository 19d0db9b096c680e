"""Topics: what is wanted and what is there -> what to do, in order, or why not. [P]

`plan` is the whole decision. A refusal leaves everything as it is: half of a spec applied is worse than a condition
that names the other half. `status_of` and `drift` are what the resource shows about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla_operator.schemas import ROWS_MAX
from ottla_operator.specs import Meta, TopicSpec
from ottla_operator.status import IN_FORCE, Condition, not_ready, ready

_MIN_INSYNC = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class SeenPartition:
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A topic as the brokers describe it."""

    name: str
    topic_id: str
    internal: bool
    partitions: tuple[SeenPartition, ...]
    #: Only what was set on the topic itself.
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        return max((len(each.replicas) for each in self.partitions), default=0)


# ------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class CreateTopic:
    name: str
    partitions: int
    #: None: as the brokers do by default.
    replicas: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GrowTopic:
    name: str
    total: int


@dataclass(frozen=True, slots=True)
class AlterTopic:
    name: str
    #: None: back to the default.
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    name: str


Action = CreateTopic | GrowTopic | AlterTopic | DeleteTopic


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    #: Why nothing is done.
    refusal: Condition | None = None


def plan(spec: TopicSpec, seen: SeenTopic | None) -> Plan:
    """Create, or grow and then configure. An existing topic is adopted as it is, if it can become what is wanted."""
    too_many = _min_insync_refusal(spec, spec.replicas if seen is None else seen.replicas)
    if too_many is not None:
        return Plan(refusal=too_many)
    if seen is None:
        return Plan((CreateTopic(spec.topic, spec.partitions, spec.replicas, spec.config),))
    refusal = _refusal(spec, seen)
    if refusal is not None:
        return Plan(refusal=refusal)
    actions: list[Action] = []
    if spec.partitions > len(seen.partitions):
        actions.append(GrowTopic(spec.topic, spec.partitions))
    changes = _changes(spec.config, seen.overrides)
    if changes:
        actions.append(AlterTopic(spec.topic, changes))
    return Plan(tuple(actions))


def _refusal(spec: TopicSpec, seen: SeenTopic) -> Condition | None:
    there = len(seen.partitions)
    if seen.internal:
        return not_ready("InternalTopic", f"{spec.topic} belongs to the brokers; no resource can change it.")
    if spec.partitions < there:
        return not_ready(
            "PartitionDecrease",
            f"{spec.topic} has {there} partitions and {spec.partitions} are wanted: partitions can only become more, "
            "because records stay where they are. Nothing was changed.",
        )
    if spec.replicas is not None and spec.replicas != seen.replicas:
        return not_ready(
            "ReplicasChange",
            f"{spec.topic} has {seen.replicas} replicas and {spec.replicas} are wanted: changing the replicas of "
            "an existing topic is not supported yet. Nothing was changed.",
        )
    return None


def _min_insync_refusal(spec: TopicSpec, replicas: int | None) -> Condition | None:
    """Brokers lower such a value to the number of replicas. The resource must not claim what does not hold."""
    wanted = spec.config.get(_MIN_INSYNC, "")
    if replicas is None or not wanted.strip().isdecimal() or int(wanted) <= replicas:
        return None
    return not_ready(
        "MinInsyncReplicasTooHigh",
        f"{_MIN_INSYNC} is {wanted} and {spec.topic} has {replicas} replicas: no write could ever have that many. "
        f"Set it to {max(1, replicas - 1)}, or ask for more replicas. Nothing was changed.",
    )


def _changes(wanted: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {
        name: value for name, value in sorted(wanted.items()) if overrides.get(name) != value
    }
    changes.update((name, None) for name in sorted(overrides) if name not in wanted)
    return changes


def plan_removal(spec: TopicSpec, seen: SeenTopic | None, topic_id: str) -> Plan:
    """The resource was deleted; so is its topic, unless it is retained, deleted already, or another one by now."""
    if spec.retain or seen is None or seen.internal or seen.topic_id != topic_id:
        return Plan()
    return Plan((DeleteTopic(spec.topic),))


# ------------------------------------------------------------------ who owns a topic


@dataclass(frozen=True, slots=True)
class Claim:
    """A resource that names a topic or a group of a cluster."""

    created: str
    uid: str
    name: str

    @property
    def rank(self) -> tuple[str, str]:
        """The oldest first; of the same second, any order that never changes."""
        return self.created, self.uid


def owner_of(claims: Iterable[Claim]) -> Claim | None:
    return min(claims, key=lambda claim: claim.rank, default=None)


def conflict(topic: str, owner: Claim) -> Condition:
    return not_ready("Conflict", f"{topic} belongs to the older Topic resource {owner.name!r}.")


# ------------------------------------------------------------------ what the resource shows


def facts_of(seen: SeenTopic) -> dict[str, Any]:
    full = sum(1 for each in seen.partitions if set(each.replicas) <= set(each.isr))
    return {
        "topicId": seen.topic_id,
        "topicName": seen.name,
        "partitionCount": len(seen.partitions),
        "replicas": seen.replicas,
        "inSync": f"{full}/{len(seen.partitions)}",
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "leaderEpoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
            }
            for each in sorted(seen.partitions, key=lambda p: p.partition)[:ROWS_MAX]
        ],
    }


def condition_of(seen: SeenTopic) -> Condition:
    """Ready: the topic matches its spec. Followers that lag are a matter of the cluster, shown beside it."""
    leaderless = [each.partition for each in seen.partitions if each.leader < 0]
    if leaderless:
        shown = ", ".join(map(str, leaderless[:10])) + (", …" if len(leaderless) > 10 else "")
        return not_ready("NoLeader", f"No leader for {len(leaderless)} partitions: {shown}.")
    return ready("The topic matches its spec.")


def words(action: Action) -> str:
    """For an event: what is being done."""
    match action:
        case CreateTopic(name, partitions):
            return f"Creating topic {name} with {partitions} partitions."
        case GrowTopic(name, total):
            return f"Growing topic {name} to {total} partitions."
        case AlterTopic(name, changes):
            said = ", ".join(
                f"{key} back to its default" if value is None else f"{key}={value}"
                for key, value in changes.items()
            )
            return f"Setting {said} on topic {name}."
        case DeleteTopic(name):
            return f"Deleting topic {name}."


def is_drift(meta: Meta, status: Mapping[str, Any] | None, actions: Sequence[Action]) -> bool:
    """Whether somebody else changed the topic: this spec was in force already, and now there is something to do."""
    before = status or {}
    settled = before.get("observedGeneration") == meta.generation and bool(before.get("topicId"))
    was_ready = any(
        row.get("type") == "Ready" and row.get("reason") in (*IN_FORCE, "NoLeader")
        for row in before.get("conditions") or ()
    )
    return bool(actions) and settled and was_ready


def loss(status: Mapping[str, Any] | None, seen: SeenTopic, *, created: bool) -> str | None:
    """A sentence, if the topic that this resource had before was deleted by somebody else, and its records with it.

    By the topic ids, after all actions: a broker whose metadata is behind may miss a topic for a moment.
    """
    before = status or {}
    if before.get("topicId") in (None, "", seen.topic_id) or before.get("topicName", seen.name) != seen.name:
        return None
    again = "It was created again, empty." if created else "Somebody created it again."
    return f"Topic {seen.name} was deleted by somebody else, and its records are lost. {again}"
