"""Plans the writes for an event: (image, event) -> plan. [P]

A plan is stages of branches. The branches of a stage are independent of each other and may be split into
several transactions; a stage begins when the one before it is complete. Every transaction is fenced by
the controller's epoch, which `backend.py` adds to the guard; every branch compares the revision of what it
changes.

Order within the plans, which a crash may cut anywhere:

* P1: a topic's partitions are written first and `topics/<name>` last, or all in one transaction; deletion
  goes the other way. Partitions without a topic are left over, and the next controller removes them.
* P2: a broker is admitted (`members/<id>`) only after every leadership of its earlier incarnation has a new epoch,
  and after it left every ISR and ELR if its log is not whole. After a crash before that, the plan starts again.
* P3: each elected leader's `members/<id>` is compared, so no broker leads that was admitted again meanwhile.
* P4: elections are one stage of independent branches: a branch that lost a race is planned again.

Asked by `service.py`, `caretaker.py` and `commands/`. It must never wait or draw at random: placements come with the
event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from ottla_broker.controller.election import Position
from ottla_broker.controller.leaders import (
    LiveBrokers,
    after_return,
    on_demand,
    policy_of,
    reconcile,
    with_preferred,
)
from ottla_broker.controller.move_queue import begun
from ottla_broker.controller.reassignment import cancelled, next_step, wished
from ottla_broker.metadata.image import BrokerImage, ClusterImage, MemberImage, PartitionImage, TopicImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_broker.metadata.sections.topics import TOPICS, StoredTopic
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import BRANCHES_MAX, Branch, Compare, CreateRevisionIs, Delete, ModRevisionIs, Put

# ---------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class BrokersArrived:
    """Brokers are registered with incarnations that are not admitted yet."""

    broker_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class PartitionsChecked:
    """A broker was lost, has lost a log directory, is about to stop or came back, or these partitions have changed.

    Leaders and in-sync sets are reconciled with the live brokers. Only the current state matters, not past events.
    """

    #: Numbers of partitions by topic.
    partitions: Mapping[str, Sequence[int]]
    #: Log ends by (topic id, partition) and broker, where an election has to wait for them (rule 2).
    positions: Mapping[tuple[UUID, int], Mapping[int, Position]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreferredLeadersWanted:
    """Time to return leaderships to preferred replicas that are in sync again."""

    partitions: Mapping[str, Sequence[int]]
    #: Brokers that have been online for a while.
    settled: Sequence[int]


@dataclass(frozen=True, slots=True)
class PartitionsMoved:
    """Partitions get other replicas, or, with None, go back to those that they had (`reassignment`)."""

    targets: Mapping[str, Mapping[int, tuple[int, ...] | None]]


@dataclass(frozen=True, slots=True)
class MovesWait:
    """There may be room for moves that wait. `partitions` are all that move or wait."""

    partitions: Mapping[str, Sequence[int]]
    #: How many partitions a broker copies at once.
    limit_of: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class LeadersElected:
    """New leaders on demand: of the preferred replicas, or uncleanly."""

    partitions: Mapping[str, Sequence[int]]
    unclean: bool = False


@dataclass(frozen=True, slots=True)
class TopicWanted:
    name: str
    topic_id: UUID
    #: Replicas of each partition, the preferred leader first.
    placement: Sequence[tuple[int, ...]]
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicGrown:
    name: str
    #: Replicas of the new partitions only.
    placement: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    name: str
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LeftoversFound:
    """Remove partitions without a topic: a creation, a growth or a deletion was interrupted."""

    topic_ids: Collection[UUID]


Event = (
    BrokersArrived
    | PartitionsChecked
    | PreferredLeadersWanted
    | PartitionsMoved
    | MovesWait
    | LeadersElected
    | TopicWanted
    | TopicGrown
    | TopicDeleted
    | TopicConfigChanged
    | LeftoversFound
)

# ---------------------------------------------------------------------- plans

NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})


class Stage(NamedTuple):
    branches: tuple[Branch, ...]
    #: Must hold for each transaction of the stage, besides the controller's epoch.
    guard: tuple[Compare, ...] = ()


class UncleanElection(NamedTuple):
    topic_id: UUID
    partition: int
    leader: int
    leader_epoch: int


class Plan(NamedTuple):
    stages: tuple[Stage, ...] = ()
    #: The unclean elections in it: leaders from outside of ISR and ELR.
    unclean: tuple[UncleanElection, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.stages)


def _plan_of(*stages: Stage) -> Plan:
    return Plan(tuple(stage for stage in stages if stage.branches))


@singledispatch
def _plan(event: object, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    raise TypeError(f"no plan for {event!r}")


def plan(image: ClusterImage, event: Event, defaults: Mapping[str, str] = NO_DEFAULTS) -> Plan:
    """The plan for the event; empty when there is nothing to do.

    `defaults` are the broker's settings for topics that do not say otherwise.
    """
    return _plan(event, image, defaults)


# ---------------------------------------------------------------------- brokers


@_plan.register
def _(event: BrokersArrived, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    arriving = [image.brokers[i] for i in event.broker_ids if i in image.brokers and not image.is_admitted(i)]
    if not arriving:
        return Plan()
    # The registrations in the plan must still exist when it is executed.
    guard = tuple(CreateRevisionIs(BROKERS.key(broker.id), broker.revision) for broker in arriving)
    unclean: list[UncleanElection] = []
    moved = tuple(_retire_earlier_incarnations(image, arriving, defaults, unclean))
    admissions = tuple(_admission(broker, image.members.get(broker.id)) for broker in arriving)
    return _plan_of(Stage(moved, guard), Stage(admissions, guard))._replace(unclean=tuple(unclean))


def _admission(broker: BrokerImage, member: MemberImage | None) -> Branch:
    admitted = MemberImage(
        broker.id,
        broker.incarnation,
        broker.directories,
        extra=member.extra if member else (),
        rack=broker.rack,
    )
    return Branch(
        (ModRevisionIs(MEMBERS.key(broker.id), member.revision if member else 0),),
        (Put(MEMBERS.key(broker.id), MEMBERS.encode(admitted)),),
    )


def _is_whole(broker: BrokerImage, member: MemberImage | None) -> bool:
    """Rule 2: all directories of the earlier incarnation are back, and none of them is torn."""
    return member is not None and not broker.torn and set(member.directories) <= set(broker.directories)


def _retire_earlier_incarnations(
    image: ClusterImage,
    brokers: Sequence[BrokerImage],
    defaults: Mapping[str, str],
    unclean: list[UncleanElection],
) -> Iterator[Branch]:
    arriving = frozenset(broker.id for broker in brokers)
    torn = frozenset(b.id for b in brokers if not _is_whole(b, image.members.get(b.id)))
    admitted = LiveBrokers.of(image)
    live = admitted._replace(alive=admitted.alive | arriving)
    for topic in image.topics.values():
        policy = policy_of(topic, defaults)
        prefix = partition_key(topic.id, 0)[:-1]
        for index, partition in enumerate(topic.partitions):
            wanted = after_return(partition, arriving, torn, live.for_partition(topic.id, index), policy)
            if wanted is not None:
                unclean.extend(_unclean(topic.id, index, partition, wanted))
                yield _change_partition(image, f"{prefix}{index}", wanted)


def _unclean(
    topic_id: UUID, index: int, before: PartitionImage, wanted: PartitionImage
) -> tuple[UncleanElection, ...]:
    """Compared here, with the state that is replaced: images that brokers see may skip states in between."""
    elected = wanted.leader != NO_BROKER and wanted.leader_epoch > before.leader_epoch
    if not elected or wanted.leader in before.isr or wanted.leader in before.elr:
        return ()
    return (UncleanElection(topic_id, index, wanted.leader, wanted.leader_epoch),)


@_plan.register
def _(event: PartitionsChecked, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    live = LiveBrokers.of(image)
    unclean: list[UncleanElection] = []

    def made() -> Iterator[Branch]:
        for topic, indexes in _chosen(image, event.partitions):
            policy = policy_of(topic, defaults)
            prefix = partition_key(topic.id, 0)[:-1]
            for index in indexes:
                positions = event.positions.get((topic.id, index))
                able = live.for_partition(topic.id, index)
                partition = topic.partitions[index]
                wanted = reconcile(partition, able, policy, positions) or next_step(partition, able)
                if wanted is not None:
                    unclean.extend(_unclean(topic.id, index, partition, wanted))
                    yield _change_partition(image, f"{prefix}{index}", wanted)

    return _plan_of(Stage(tuple(made())))._replace(unclean=tuple(unclean))


@_plan.register
def _(event: PreferredLeadersWanted, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    # A broker that has just come back gets nothing yet: it may fail again.
    live = LiveBrokers.of(image)
    live = live._replace(alive=live.alive.intersection(event.settled))

    def made() -> Iterator[Branch]:
        for topic, indexes in _chosen(image, event.partitions):
            prefix = partition_key(topic.id, 0)[:-1]
            for index in indexes:
                wanted = with_preferred(topic.partitions[index], live.for_partition(topic.id, index))
                if wanted is not None:
                    yield _change_partition(image, f"{prefix}{index}", wanted)

    return _plan_of(Stage(tuple(made())))


@_plan.register
def _(event: PartitionsMoved, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    def made() -> Iterator[Branch]:
        for topic, indexes in _chosen(image, {name: list(some) for name, some in event.targets.items()}):
            for index in indexes:
                partition, target = topic.partitions[index], event.targets[topic.name][index]
                wanted = cancelled(partition) if target is None else wished(partition, target)
                if wanted is not None:
                    yield _change_partition(image, partition_key(topic.id, index), wanted)

    return _plan_of(Stage(tuple(made())))


@_plan.register
def _(event: MovesWait, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    moves = {
        partition_key(topic.id, index): topic.partitions[index]
        for topic, indexes in _chosen(image, event.partitions)
        for index in indexes
    }
    made = begun(moves, event.limit_of)
    return _plan_of(Stage(tuple(_change_partition(image, key, wanted) for key, wanted in made.items())))


@_plan.register
def _(event: LeadersElected, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    live = LiveBrokers.of(image)
    unclean: list[UncleanElection] = []

    def made() -> Iterator[Branch]:
        for topic, indexes in _chosen(image, event.partitions):
            policy = policy_of(topic, defaults)
            for index in indexes:
                able = live.for_partition(topic.id, index)
                wanted = on_demand(topic.partitions[index], able, policy, unclean=event.unclean)
                if isinstance(wanted, PartitionImage):
                    unclean.extend(_unclean(topic.id, index, topic.partitions[index], wanted))
                    yield _change_partition(image, partition_key(topic.id, index), wanted)

    return _plan_of(Stage(tuple(made())))._replace(unclean=tuple(unclean))


def _chosen(
    image: ClusterImage, chosen: Mapping[str, Sequence[int]]
) -> Iterator[tuple[TopicImage, Sequence[int]]]:
    """The chosen partitions that still exist."""
    for name, indexes in chosen.items():
        topic = image.topics.get(name)
        if topic is not None:
            yield topic, [index for index in indexes if index < len(topic.partitions)]


def _change_partition(image: ClusterImage, key: str, wanted: PartitionImage) -> Branch:
    """`wanted.revision` is still the one that was read: what the branch compares."""
    compares: tuple[Compare, ...] = (ModRevisionIs(key, wanted.revision),)
    if wanted.leader != NO_BROKER:
        compares += (_member_as_read(image, wanted.leader),)
    return Branch(compares, (Put(key, PARTITIONS.encode(wanted)),))


def _member_as_read(image: ClusterImage, broker_id: int) -> Compare:
    member = image.members.get(broker_id)
    return ModRevisionIs(MEMBERS.key(broker_id), member.revision if member else 0)


# ---------------------------------------------------------------------- topics


@_plan.register
def _(event: TopicWanted, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    guard = (ModRevisionIs(TOPICS.key(event.name), 0), *_members_of(image, event.placement))
    topic = Branch(
        (),
        (
            Put(
                TOPICS.key(event.name),
                TOPICS.encode(StoredTopic(event.topic_id, len(event.placement), event.config)),
            ),
        ),
    )
    partitions = _new_partitions(image, event.topic_id, event.placement, 0)
    return _first_then(partitions, topic, guard)


@_plan.register
def _(event: TopicGrown, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    topic = image.topics[event.name]
    count = len(topic.partitions)
    grown = TOPICS.encode(StoredTopic(topic.id, count + len(event.placement), topic.config, topic.extra))
    guard = (ModRevisionIs(TOPICS.key(event.name), topic.revision), *_members_of(image, event.placement))
    partitions = _new_partitions(image, topic.id, event.placement, count)
    return _first_then(partitions, Branch((), (Put(TOPICS.key(event.name), grown),)), guard)


@_plan.register
def _(event: TopicDeleted, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    topic = image.topics[event.name]
    indexes = [*range(len(topic.partitions)), *image.unnamed.get(topic.id, ())]
    # Deleted whatever their revision: the topic id is no longer used, so no leader may write them.
    gone = tuple(Branch((), (Delete(partition_key(topic.id, i)),)) for i in indexes)
    first = Branch((), (Delete(TOPICS.key(event.name)),))
    guard = (ModRevisionIs(TOPICS.key(event.name), topic.revision),)
    together = BRANCHES_MAX - 1
    return _plan_of(Stage((first, *gone[:together]), guard), Stage(gone[together:]))


@_plan.register
def _(event: TopicConfigChanged, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    topic = image.topics[event.name]
    value = TOPICS.encode(StoredTopic(topic.id, len(topic.partitions), event.config, topic.extra))
    compare = ModRevisionIs(TOPICS.key(event.name), topic.revision)
    return _plan_of(Stage((Branch((compare,), (Put(TOPICS.key(event.name), value),)),)))


def set_key(key: str, value: bytes | None) -> Plan:
    """Replace the whole value of a key, or delete it. Nothing is compared: commands are executed one after the other,
    fenced by the controller's epoch, so no other writer can have changed the key since it was read."""
    write = Delete(key) if value is None else Put(key, value)
    return Plan((Stage((Branch((), (write,)),)),))


@_plan.register
def _(event: LeftoversFound, image: ClusterImage, defaults: Mapping[str, str]) -> Plan:
    return _plan_of(
        Stage(
            tuple(
                Branch((ModRevisionIs(key, partition.revision),), (Delete(key),))
                for topic_id, partitions in image.unnamed.items()
                if topic_id in event.topic_ids
                for index, partition in partitions.items()
                for key in (partition_key(topic_id, index),)
            )
        )
    )


def _first_then(partitions: Sequence[Branch], topic: Branch, guard: tuple[Compare, ...]) -> Plan:
    """P1: all at once if it fits into one transaction, else the topic last."""
    if len(partitions) < BRANCHES_MAX:
        return _plan_of(Stage((*partitions, topic), guard))
    return _plan_of(Stage(tuple(partitions), guard), Stage((topic,), guard))


def _new_partitions(
    image: ClusterImage, topic_id: UUID, placement: Sequence[tuple[int, ...]], first: int
) -> list[Branch]:
    live = {broker.id for broker in image.staying()} or {broker.id for broker in image.admitted()}
    prefix = partition_key(topic_id, 0)[:-1]
    made = []
    for index, replicas in enumerate(placement, first):
        isr = tuple(r for r in replicas if r in live)
        partition = PartitionImage(replicas, leader=isr[0] if isr else NO_BROKER, isr=isr or replicas)
        # An interrupted growth may have left it; it was never part of the topic.
        old = image.unnamed.get(topic_id, {}).get(index)
        compare = ModRevisionIs(f"{prefix}{index}", old.revision if old else 0)
        made.append(Branch((compare,), (Put(f"{prefix}{index}", PARTITIONS.encode(partition)),)))
    return made


def _members_of(image: ClusterImage, placement: Sequence[tuple[int, ...]]) -> tuple[Compare, ...]:
    """P3 for new partitions, once for all of them: every replica is in an ISR."""
    named = sorted({broker_id for replicas in placement for broker_id in replicas})
    return tuple(_member_as_read(image, broker_id) for broker_id in named)
