"""Broker-side groups (KIP-848) on the native protocol: their messages, translated to the group service and back. [S]"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from ottla_broker.group.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribedConsumerGroup,
    DescribedConsumerMember,
)
from ottla_broker.group.consumer.partitions import Partitions
from ottla_broker.group.messages import GroupType
from ottla_broker.group.subscription import CONSUMER
from ottla_core.errors import InvalidRequest
from ottla_core.pb import groups_pb2 as pb

_INT32_MAX = 2**31 - 1


def heartbeat(request: pb.ConsumerHeartbeatRequest, client_host: str) -> ConsumerHeartbeat:
    timeout_ms = request.rebalance_timeout_ms if request.HasField("rebalance_timeout_ms") else -1
    if timeout_ms > _INT32_MAX:
        raise InvalidRequest(f"rebalance_timeout_ms is {timeout_ms}; at most {_INT32_MAX} is possible.")
    return ConsumerHeartbeat(
        request.group,
        request.member_id,
        request.member_epoch,
        request.client_id,
        client_host,
        request.group_instance_id or None,
        request.rack_id if request.HasField("rack_id") else None,
        timeout_ms,
        tuple(request.topics.names) if request.HasField("topics") else None,
        request.topic_regex if request.HasField("topic_regex") else None,
        request.assignor if request.HasField("assignor") else None,
        _partitions(request.owned) if request.HasField("owned") else None,
    )


def _partitions(owned: pb.AssignedTopics) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for each in owned.topics:
        try:
            topic_id = UUID(each.topic_id)
        except ValueError:
            raise InvalidRequest(
                f"{each.topic_id!r} is not a topic id; send it as in the assignment."
            ) from None
        if each.partitions:
            found[topic_id] = found.get(topic_id, frozenset()) | frozenset(each.partitions)
    return found


def heartbeat_response(
    reply: ConsumerHeartbeatReply, names: Mapping[UUID, str]
) -> pb.ConsumerHeartbeatResponse:
    response = pb.ConsumerHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
    )
    if reply.assignment is not None:
        response.assignment.SetInParent()  # An empty assignment is one, too.
        response.assignment.topics.extend(_named(reply.assignment, names))
    return response


def _named(partitions: Partitions, names: Mapping[UUID, str]) -> list[pb.AssignedTopic]:
    """Without partitions of topics that have been deleted: they have no name."""
    return [
        pb.AssignedTopic(topic_id=str(topic_id), topic=names[topic_id], partitions=sorted(indexes))
        for topic_id, indexes in partitions.items()
        if topic_id in names
    ]


def described(found: DescribedConsumerGroup, names: Mapping[UUID, str]) -> pb.DescribedGroup:
    return pb.DescribedGroup(
        state=found.state.value,
        protocol_type=CONSUMER,
        protocol=found.assignor,
        generation=found.epoch,
        group_type=GroupType.CONSUMER.value,
        assignment_epoch=found.assignment_epoch,
        assignor_failure=found.assignor_failure,
        members=[_member(each, names) for each in found.members],
    )


def _member(member: DescribedConsumerMember, names: Mapping[UUID, str]) -> pb.DescribedMember:
    return pb.DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id or "",
        client_id=member.client_id,
        client_host=member.client_host,
        member_epoch=member.epoch,
        rack_id=member.rack_id or "",
        topics=member.topics,
        topic_regex=member.regex or "",
        current=_named(member.assignment, names),
        target=_named(member.target, names),
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        speaks_classic=member.is_classic,
    )
