"""Validates requests about topics, and completes them with defaults and placements. [P]

`service.py` asks before it plans. Every refusal is a `RequestError` with Kafka's code and a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ottla_broker.controller.names import check_collision, check_topic_name
from ottla_broker.controller.placement import Site, place
from ottla_broker.metadata.image import ClusterImage, TopicImage
from ottla_broker.metadata.sections.topics import PARTITIONS_MAX
from ottla_broker.requests import NewTopic
from ottla_core.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

Placement: TypeAlias = list[tuple[int, ...]]
#: Raises InvalidConfig; its result is ignored.
Validate: TypeAlias = Callable[[Mapping[str, str]], object]
#: A whole number in [0, limit).
Draw: TypeAlias = Callable[[int], int]


class Checked(NamedTuple):
    """A topic that may be created."""

    name: str
    placement: Placement
    config: dict[str, str]


def check_new_topic(
    image: ClusterImage, topic: NewTopic, taken: Mapping[str, str], validate: Validate, draw: Draw
) -> Checked:
    """`taken`: collision key -> name of all that exist, and of those that the same request creates."""
    check_topic_name(topic.name)
    if topic.name in image.topics:
        raise TopicAlreadyExists(f"Topic {topic.name!r} exists already.")
    check_collision(topic.name, taken)
    config = check_config(topic.config or {}, validate)
    if topic.assignments is not None:
        if topic.partitions not in (-1, len(topic.assignments)):
            raise InvalidRequest("Give either a number of partitions or their replicas, not both.")
        placement = check_assignments(image, topic.assignments)
    else:
        check_partition_count(topic.partitions)
        placement = _placed(image, topic.partitions, topic.replication_factor, 0, draw)
    return Checked(topic.name, placement, config)


def check_growth(
    image: ClusterImage,
    name: str,
    total: int,
    assignments: Sequence[tuple[int, ...]] | None,
    draw: Draw,
) -> Placement:
    """Replicas of the partitions to add."""
    topic = find_topic(image, name)
    count = len(topic.partitions)
    if topic.is_internal:
        raise InvalidPartitions(
            f"{name} never changes its partition count: what a group or transaction is found by depends on it."
        )
    if total <= count:
        now = "1 partition" if count == 1 else f"{count} partitions"
        raise InvalidPartitions(
            f"Topic {name!r} has {now}; {total} would not be more, and partitions are never taken away."
        )
    check_partition_count(total)
    if assignments is None:
        # Of a partition that moves, `replicas` has those that leave, too.
        factor = max((len(p.wanted) for p in topic.partitions), default=1)
        return _placed(image, total - count, factor, count, draw)
    if len(assignments) != total - count:
        raise InvalidReplicaAssignment(
            f"{total - count} partitions are to be added, but replicas are given for {len(assignments)}."
        )
    return check_assignments(image, assignments)


def check_config(config: Mapping[str, str | None], validate: Validate) -> dict[str, str]:
    empty = sorted(name for name, value in config.items() if value is None)
    if empty:
        raise InvalidConfig(f"{empty[0]} has no value; leave it out to get its default.")
    checked = {name: value for name, value in config.items() if value is not None}
    validate(checked)
    return checked


def check_partition_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitions(f"A topic has 1 to {PARTITIONS_MAX} partitions; {count} were asked for.")


def check_assignments(image: ClusterImage, assignments: Sequence[tuple[int, ...]]) -> Placement:
    """Replicas that a client chose itself."""
    if not assignments:
        raise InvalidReplicaAssignment("No replicas are given.")
    check_partition_count(len(assignments))
    here = {broker.id for broker in image.admitted()}
    for index, replicas in enumerate(assignments):
        if not replicas:
            raise InvalidReplicaAssignment(f"The partition at place {index} has no replicas.")
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"A broker is named twice in {list(replicas)}.")
        if len(replicas) != len(assignments[0]):
            raise InvalidReplicaAssignment("All partitions need the same number of replicas.")
        unknown = [r for r in replicas if r not in here and r not in image.members]
        if unknown:
            raise InvalidReplicaAssignment(f"There is no broker {unknown[0]}.")
        if not any(r in here for r in replicas):
            raise InvalidReplicaAssignment(f"None of the brokers {list(replicas)} is online.")
        check_not_cordoned(image, replicas)
    return list(assignments)


def check_not_cordoned(image: ClusterImage, added: Iterable[int]) -> None:
    """`added` are brokers that would get a new replica."""
    cordoned = [r for r in added if r in image.cordons]
    if cordoned:
        raise InvalidReplicaAssignment(
            f"Broker {cordoned[0]} is cordoned and gets no new replicas; choose another one, or uncordon it."
        )


def find_topic(image: ClusterImage, name: str) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"There is no topic {name!r}.")
    return topic


def _placed(image: ClusterImage, count: int, factor: int, first: int, draw: Draw) -> Placement:
    # Stopping brokers get no new replicas, unless the replication factor requires it; cordoned ones never.
    staying = [broker for broker in image.staying() if broker.id not in image.cordons]
    admitted = [broker for broker in image.admitted() if broker.id not in image.cordons]
    brokers = staying if len(staying) >= factor else admitted
    sites = [Site(broker.id, broker.rack) for broker in brokers]
    start, shift = draw(max(1, len(sites))), draw(max(1, len(sites)))
    return place(sites, count, factor, start=start, shift=shift, first=first)
