"""Online migration of groups between the two protocols (`group.consumer.migration.policy`). [P]

* Upgrade: the first member of the consumer protocol joins a classic group of consumers. Its members become members of
  the classic protocol in a broker-side group, with the generation as epoch and the assignments that they have;
  `classic_members` serves them from then on.
* Downgrade: the last member of the consumer protocol is gone. The others become members of a classic group, with the
  group epoch as generation. If the group has not settled (members of before owned partitions), the record names no
  leader: then the coordinator, this one or the next that loads it, starts a rebalance.

Both write tombstones for the old kind and records of the new one, in one batch. Committed offsets are not touched.
"""

from __future__ import annotations

from enum import StrEnum

from ottla_broker.coordination.fields import Undecodable
from ottla_broker.coordination.shard import Now, StateRecord
from ottla_broker.group.consumer.classic_members import named
from ottla_broker.group.consumer.group import ConsumerGroup
from ottla_broker.group.consumer.partitions import Partitions
from ottla_broker.group.consumer.records import (
    ClassicMetadata,
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    TargetAssignment,
    TargetEpoch,
    Value,
)
from ottla_broker.group.group import Group
from ottla_broker.group.member import Member
from ottla_broker.group.messages import State
from ottla_broker.group.records import group_record
from ottla_broker.group.subscription import CONSUMER, read_assignment, read_subscription, write_assignment
from ottla_broker.group_config import GroupSettings
from ottla_broker.metadata.image import ClusterImage
from ottla_core.errors import GroupIdNotFound
from ottla_core.ids import TopicPartition

#: Their assignments mean the same without user data. librdkafka's sticky assignor sends some.
_PLAIN_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


class MigrationPolicy(StrEnum):
    """Kafka's names."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


def upgraded(
    classic: Group, image: ClusterImage, policy: MigrationPolicy, size_max: int
) -> tuple[ConsumerGroup, list[StateRecord]]:
    """The same group of the other kind, with its records. GroupIdNotFound if it cannot be upgraded."""
    if not policy.upgrades:
        raise GroupIdNotFound(
            "The group has members of the classic protocol, and group.consumer.migration.policy allows no upgrade; "
            "stop them first, or set group.protocol=classic."
        )
    if not classic.is_consumers:
        raise GroupIdNotFound(
            f"The group has members of type {classic.protocol_type!r}; use another group id."
        )
    if len(classic.members) > size_max:
        raise GroupIdNotFound(
            f"The group has more members than group.consumer.max.size, which is {size_max}."
        )
    group, records = ConsumerGroup(classic.id), []

    def put(name: str, value: Value) -> None:
        record = ConsumerRecord(classic.id, value.kind, name, value)
        group.apply(record)
        records.append(record.encoded())

    owners: dict[TopicPartition, str] = {}
    carried = [
        (member, *_carried(member, classic.protocol, image, owners)) for member in classic.members.values()
    ]
    for member, metadata, _ in carried:
        put(member.id, metadata)
    put("", GroupEpoch(classic.generation))
    for member, _, assigned in carried:
        put(member.id, TargetAssignment(assigned))
    put("", TargetEpoch(classic.generation))
    for member, _, assigned in carried:
        put(member.id, CurrentAssignment(classic.generation, classic.generation, assigned=assigned))
    return group, records


def _carried(
    member: Member, protocol: str | None, image: ClusterImage, owners: dict[TopicPartition, str]
) -> tuple[MemberMetadata, Partitions]:
    try:
        subscription = read_subscription(member.protocols[0].metadata)
        assigned, user_data = read_assignment(member.assignment)
    except Undecodable as error:
        raise GroupIdNotFound(
            f"The group cannot be upgraded, because the metadata of a member cannot be decoded: {error}."
        ) from None
    if user_data and protocol not in _PLAIN_ASSIGNORS:
        raise GroupIdNotFound(
            "The group cannot be upgraded, because its classic members use a custom assignor; stop them first, or "
            "let them use one of Kafka's."
        )
    owned: dict[str, set[int]] = {}
    for tp in assigned:
        # Clients assign: nothing stops a faulty assignor from giving a partition to two members.
        if image.partition(tp) is not None and owners.setdefault(tp, member.id) == member.id:
            owned.setdefault(tp.topic, set()).add(tp.partition)
    metadata = MemberMetadata(
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicMetadata(member.session_timeout_ms, member.protocols),
    )
    return metadata, {image.topics[name].id: frozenset(found) for name, found in owned.items()}


def downgraded(
    group: ConsumerGroup,
    image: ClusterImage,
    policy: MigrationPolicy,
    settings: GroupSettings,
    now: Now,
    *,
    size_max: int,
    record_bytes_max: int,
) -> tuple[Group, StateRecord] | None:
    """The same group of the other kind, with its record. None if it is not to be downgraded, or cannot be."""
    if not policy.downgrades or not 0 < len(group.members) <= size_max:
        return None
    classic = Group(group.id)
    assignments: dict[str, bytes] = {}
    for each in group.members.values():
        metadata = each.metadata
        if metadata.classic is None:
            return None
        member = Member(
            each.id,
            metadata.instance_id,
            metadata.client_id,
            metadata.client_host,
            metadata.classic.session_timeout_ms,
            metadata.rebalance_timeout_ms,
            metadata.classic.protocols,
        )
        classic.add(member, CONSUMER)
        version = read_subscription(metadata.classic.protocols[0].metadata).version
        assignments[each.id] = write_assignment(version, named(image, each.current.assigned))
    classic.generation = group.epoch
    classic.protocol = classic.vote(settings.assignor)
    classic.become(State.STABLE, now.wall_ms)
    if group.state is not State.STABLE:
        classic.leader_id = None
    value = classic.to_value(assignments)
    record = group_record(group.id, value)
    if len(record.value or b"") > record_bytes_max:
        return None
    classic.adopt(value)
    return classic, record
