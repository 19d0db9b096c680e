"""Topics: desired and observed state -> ordered actions, or a refusal. [P]

`plan` is the whole decision. A refusal changes nothing: a half-applied spec is worse than a condition.
`facts_of` and `condition_of` are the resource's status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla_operator.schemas import ROWS_MAX
from ottla_operator.specs import Meta, TopicSpec
from ottla_operator.status import IN_FORCE, READY, Condition, not_ready, ready

_MIN_INSYNC = "min.insync.replicas"
#: Reason of the condition while replicas are copied to the brokers that the spec asks for.
MOVING = "Moving"


@dataclass(frozen=True, slots=True)
class SeenPartition:
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    #: Replicas that leave when the current move is complete.
    removing: tuple[int, ...] = ()
    #: Replicas that copy the partition, and join it when the current move is complete.
    adding: tuple[int, ...] = ()
    #: The replicas after a move that waits for its turn.
    planned: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the current move."""
        return self.planned or tuple(each for each in self.replicas if each not in self.removing)

    @property
    def settled(self) -> tuple[int, ...]:
        """The replicas without those that still copy."""
        return tuple(each for each in self.replicas if each not in self.adding)


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A topic as the brokers describe it."""

    name: str
    topic_id: str
    internal: bool
    partitions: tuple[SeenPartition, ...]
    #: Only settings of the topic itself, without defaults.
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        return max((len(each.target) for each in self.partitions), default=0)


# ------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class CreateTopic:
    name: str
    partitions: int
    #: None: the brokers' default.
    replicas: int | None
    config: Mapping[str, str]
    #: partition -> brokers, for all partitions or none.
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GrowTopic:
    name: str
    total: int
    #: partition -> brokers, for all new partitions or none.
    assignment: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlterTopic:
    name: str
    #: None: reset to the default.
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    name: str


@dataclass(frozen=True, slots=True)
class PlaceTopic:
    """Move partitions to the brokers that the spec declares."""

    name: str
    #: partition -> brokers
    targets: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ResizeTopic:
    """Change the replication factor. Which brokers get or lose replicas is decided by `ottla_client.rebalance`."""

    name: str
    replicas: int


Action = CreateTopic | GrowTopic | AlterTopic | DeleteTopic | PlaceTopic | ResizeTopic


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...] = ()
    #: Why there are no actions.
    refusal: Condition | None = None


def plan(spec: TopicSpec, seen: SeenTopic | None) -> Plan:
    """Create, or grow and then configure. An existing topic is adopted if it can be changed to match the spec."""
    too_many = _min_insync_refusal(spec, seen.replicas if seen and spec.replicas is None else spec.replicas)
    if too_many is not None:
        return Plan(refusal=too_many)
    if seen is None:
        placed = _placed(spec, 0)
        return Plan((CreateTopic(spec.topic, spec.partitions, spec.replicas, spec.config, placed),))
    refusal = _refusal(spec, seen)
    if refusal is not None:
        return Plan(refusal=refusal)
    actions: list[Action] = []
    if spec.partitions > len(seen.partitions):
        actions.append(GrowTopic(spec.topic, spec.partitions, _placed(spec, len(seen.partitions))))
    targets = {
        each.partition: spec.assignment[each.partition]
        for each in seen.partitions
        if spec.assignment.get(each.partition, each.target) != each.target
    }
    if targets:
        actions.append(PlaceTopic(spec.topic, targets))
    others = [each for each in seen.partitions if each.partition not in spec.assignment]
    if spec.replicas is not None and any(len(each.target) != spec.replicas for each in others):
        actions.append(ResizeTopic(spec.topic, spec.replicas))
    changes = _changes(spec.config, seen.overrides)
    if changes:
        actions.append(AlterTopic(spec.topic, changes))
    return Plan(tuple(actions))


def _placed(spec: TopicSpec, first: int) -> dict[int, tuple[int, ...]]:
    """The declared brokers of the partitions from `first` on, if brokers can create them so in one request.

    They take all partitions or none, with one number of replicas; other declarations are moves after the creation.
    """
    rows = {each: spec.assignment.get(each, ()) for each in range(first, spec.partitions)}
    sizes = {len(brokers) for brokers in rows.values()}
    return rows if len(sizes) == 1 and 0 not in sizes else {}


def _refusal(spec: TopicSpec, seen: SeenTopic) -> Condition | None:
    there = len(seen.partitions)
    if seen.internal:
        return not_ready("InternalTopic", f"{spec.topic} is an internal topic; a resource cannot change it.")
    if spec.partitions < there:
        return not_ready(
            "PartitionDecrease",
            f"{spec.topic} has {there} partitions and the spec has {spec.partitions}: the number of partitions cannot "
            "shrink, because records stay in their partitions. Nothing was changed.",
        )
    return None


def _min_insync_refusal(spec: TopicSpec, replicas: int | None) -> Condition | None:
    """Brokers lower such a value to the number of replicas, so the spec would not be in force."""
    wanted = spec.config.get(_MIN_INSYNC, "")
    if replicas is None or not wanted.strip().isdecimal() or int(wanted) <= replicas:
        return None
    return not_ready(
        "MinInsyncReplicasTooHigh",
        f"{_MIN_INSYNC} is {wanted}, but {spec.topic} has only {replicas} replicas: no acks=all write could succeed. "
        f"Set it to {max(1, replicas - 1)}, or use more replicas. Nothing was changed.",
    )


def _changes(wanted: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {
        name: value for name, value in sorted(wanted.items()) if overrides.get(name) != value
    }
    changes.update((name, None) for name in sorted(overrides) if name not in wanted)
    return changes


def plan_removal(spec: TopicSpec, seen: SeenTopic | None, topic_id: str) -> Plan:
    """Delete the topic of a deleted resource, unless it is retained, already deleted, or was recreated since."""
    if spec.retain or seen is None or seen.internal or seen.topic_id != topic_id:
        return Plan()
    return Plan((DeleteTopic(spec.topic),))


# ------------------------------------------------------------------ ownership of a topic


@dataclass(frozen=True, slots=True)
class Claim:
    """A resource that names a topic or a group of a cluster."""

    created: str
    uid: str
    name: str
    namespace: str = ""

    @property
    def rank(self) -> tuple[str, str]:
        """The oldest first; within the same second, any stable order."""
        return self.created, self.uid


def owner_of(claims: Iterable[Claim]) -> Claim | None:
    return min(claims, key=lambda claim: claim.rank, default=None)


def conflict(topic: str, owner: Claim) -> Condition:
    return not_ready("Conflict", f"{topic} belongs to the older Topic resource {owner.name!r}.")


# ------------------------------------------------------------------ status


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


def condition_of(spec: TopicSpec, seen: SeenTopic) -> Condition:
    """Ready: the topic matches its spec. Lagging followers do not count; `inSync` shows them.

    Moves that the spec does not ask for, of a drain or a Rebalance, do not count either.
    """
    leaderless = [each.partition for each in seen.partitions if each.leader < 0]
    if leaderless:
        shown = ", ".join(map(str, leaderless[:10])) + (", …" if len(leaderless) > 10 else "")
        return not_ready("NoLeader", f"No leader for {len(leaderless)} partitions: {shown}.")
    pending = [each for each in seen.partitions if not _is_placed(spec, each)]
    if pending:
        copied = sum(1 for each in pending if each.adding)
        return Condition(
            READY,
            None,  # nothing is wrong
            MOVING,
            f"{len(pending)} of {len(seen.partitions)} partitions are still to reach the replicas of the spec; "
            f"{copied} of them copy now.",
        )
    return ready("The topic matches its spec.")


def _is_placed(spec: TopicSpec, seen: SeenPartition) -> bool:
    """Whether the partition has the replicas that the spec declares, and no copy is missing."""
    declared = spec.assignment.get(seen.partition)
    if declared is not None:
        return seen.settled == declared
    return spec.replicas is None or len(seen.settled) == spec.replicas


def words(action: Action) -> str:
    """Event message for an action."""
    match action:
        case CreateTopic(name, partitions):
            return f"Creating topic {name} with {partitions} partitions."
        case GrowTopic(name, total):
            return f"Growing topic {name} to {total} partitions."
        case AlterTopic(name, changes):
            said = ", ".join(
                f"{key} to its default" if value is None else f"{key}={value}"
                for key, value in changes.items()
            )
            return f"Setting {said} on topic {name}."
        case PlaceTopic(name, targets):
            return f"Moving {len(targets)} partitions of topic {name} to the brokers that the spec declares."
        case ResizeTopic(name, replicas):
            return f"Changing topic {name} to {replicas} replicas."
        case DeleteTopic(name):
            return f"Deleting topic {name}."


def is_drift(meta: Meta, status: Mapping[str, Any] | None, actions: Sequence[Action]) -> bool:
    """Whether another client changed the topic: this spec was already in force, and now there are actions."""
    before = status or {}
    settled = before.get("observedGeneration") == meta.generation and bool(before.get("topicId"))
    was_ready = any(
        row.get("type") == "Ready" and row.get("reason") in (*IN_FORCE, "NoLeader")
        for row in before.get("conditions") or ()
    )
    return bool(actions) and settled and was_ready


def loss(status: Mapping[str, Any] | None, seen: SeenTopic, *, created: bool) -> str | None:
    """A message, if another client deleted the topic that this resource had before, and its records with it.

    Compares topic ids after all actions: a broker with stale metadata may miss a topic for a moment.
    """
    before = status or {}
    if before.get("topicId") in (None, "", seen.topic_id) or before.get("topicName", seen.name) != seen.name:
        return None
    again = "The operator created it again, empty." if created else "Another client created it again."
    return f"Topic {seen.name} was deleted by another client, and its records are lost. {again}"
