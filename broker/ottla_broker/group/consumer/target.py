"""The target assignment of a broker-side group: subscriptions and cluster metadata in, partitions by member out. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from ottla_broker.group.consumer.group import ConsumerGroup
from ottla_broker.group.consumer.partitions import Partitions, each
from ottla_broker.group_config import GroupSettings
from ottla_broker.metadata.image import ClusterImage
from ottla_core.assignors.model import Assignment, Assignor, Members, MemberSubscription, Topology
from ottla_core.assignors.registry import BUILT_IN, DEFAULT
from ottla_core.assignors.uniform import pinned, with_pins
from ottla_core.ids import TopicPartition

#: Some exceptions repeat their input.
_FAILURE_CHARS_MAX = 300


def selected_assignor(
    group: ConsumerGroup, settings: GroupSettings, known: Mapping[str, Assignor]
) -> Assignor:
    """The group's setting, else the one that most members ask for, else the default."""
    if settings.assignor in known:
        return known[settings.assignor or ""]
    votes = Counter(m.metadata.assignor for m in group.members.values() if m.metadata.assignor in known)
    return known[max(votes, key=lambda name: votes[name]) or DEFAULT] if votes else known[DEFAULT]


def metadata_hash(
    group: ConsumerGroup, image: ClusterImage, settings: GroupSettings, assignor: Assignor
) -> int:
    """Of everything outside the group that an assignment depends on; never 0."""
    made = blake2b(digest_size=8)
    made.update(repr((assignor.name, sorted(settings.assignor_parameters.items()))).encode())
    racks = _reads_by_rack(group)
    for name in sorted(group.subscribed_topics()):
        topic = image.topics.get(name)
        if topic is not None:
            places = [sorted(_racks(image, p.replicas)) for p in topic.partitions] if racks else ()
            made.update(repr((name, topic.id.int, len(topic.partitions), places)).encode())
    return int.from_bytes(made.digest(), signed=True) or 1


class Target(NamedTuple):
    #: By member id.
    partitions: dict[str, Partitions]
    #: The assignor that made it, and why that is the default one instead of the selected one.
    made_by: Assignor
    failure: str = ""


def compute_target(
    group: ConsumerGroup, image: ClusterImage, settings: GroupSettings, assignor: Assignor
) -> Target:
    """By the assignor, or by the default one if it fails."""
    topics = {name: image.topics[name] for name in group.subscribed_topics() if name in image.topics}
    topology = Topology({name: len(topic.partitions) for name, topic in topics.items()})
    if _reads_by_rack(group):
        topology = Topology(
            topology.counts,
            {
                TopicPartition(name, index): _racks(image, partition.replicas)
                for name, topic in topics.items()
                for index, partition in enumerate(topic.partitions)
            },
        )
    members = {
        member.id: MemberSubscription(
            group.subscription(member),
            _by_name(image, member.target),
            member.metadata.instance_id,
            member.metadata.rack_id,
        )
        for member in group.members.values()
    }
    failure = ""
    try:
        made = _assigned(assignor, topology, members, settings.assignor_parameters)
    except Exception as error:
        failure = f"The assignor {assignor.name} failed: {error!r}"[:_FAILURE_CHARS_MAX]
        assignor = BUILT_IN[DEFAULT]
        made = assignor.assign(topology, members, {})
    return Target(
        {member_id: _by_id(image, made.get(member_id, [])) for member_id in members}, assignor, failure
    )


def _assigned(
    assignor: Assignor, topology: Topology, members: Members, parameters: Mapping[str, str]
) -> Assignment:
    """Raises whatever a custom assignor raises, and ValueError if its assignment is invalid."""
    made = assignor.assign(topology, members, parameters)
    if not assignor.shares_partitions:
        made = with_pins(made, pinned(topology, members, parameters))
    given = [tp for owned in made.values() for tp in owned]
    for member_id, owned in made.items():
        for tp in owned:
            if tp.topic not in members[member_id].topics or not 0 <= tp.partition < topology.counts.get(
                tp.topic, 0
            ):
                raise ValueError(f"{member_id} cannot have {tp}")
    if not assignor.shares_partitions and len(set(given)) != len(given):
        raise ValueError("a partition has two members")
    return made


def _reads_by_rack(group: ConsumerGroup) -> bool:
    return any(member.metadata.rack_id for member in group.members.values())


def _racks(image: ClusterImage, replicas: tuple[int, ...]) -> frozenset[str]:
    brokers = (image.brokers.get(replica) for replica in replicas)
    return frozenset(broker.rack for broker in brokers if broker is not None and broker.rack)


def _by_name(image: ClusterImage, partitions: Partitions) -> tuple[TopicPartition, ...]:
    names = image.names_by_id
    return tuple(TopicPartition(names[topic], index) for topic, index in each(partitions) if topic in names)


def _by_id(image: ClusterImage, partitions: list[TopicPartition]) -> Partitions:
    by_name: dict[str, list[int]] = {}
    for tp in partitions:
        by_name.setdefault(tp.topic, []).append(tp.partition)
    made: dict[UUID, frozenset[int]] = {}
    for name, indexes in by_name.items():
        made[image.topics[name].id] = frozenset(indexes)
    return made
