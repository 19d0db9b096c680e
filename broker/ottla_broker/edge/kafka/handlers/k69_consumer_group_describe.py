"""ConsumerGroupDescribe (69), versions 0-1: epochs, assignor and members of broker-side groups (KIP-848). [S]

Versions: 1 adds the type of each member.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka import admin, groups
from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, Steps, error_fields
from ottla_broker.group.consumer.messages import DescribedConsumerGroup, DescribedConsumerMember
from ottla_broker.group.consumer.partitions import Partitions
from ottla_broker.requests import Maybe
from ottla_broker.steps import begun
from ottla_core.errors import RequestError

OVERLAPS = True
READ_ONLY = True

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_describe_all(context, request))


def _describe_all(context: Context, request: Request) -> Steps:
    fields = yield from request.fields_in_steps()
    with_operations = bool(fields["include_authorized_operations"])
    return (
        yield from groups.each_answered(
            fields["group_ids"], lambda group: _describe(context, group, with_operations)
        )
    )


def _describe(context: Context, group: str, with_operations: bool) -> Maybe[Reply]:
    def refuse(error: RequestError) -> Reply:
        return error_fields(error) | {"group_id": group, "authorized_operations": admin.NO_OPERATIONS}

    def shape(found: DescribedConsumerGroup) -> Reply:
        return error_fields(None) | {
            "group_id": group,
            "group_state": found.state.value,
            "group_epoch": found.epoch,
            "assignment_epoch": found.assignment_epoch,
            "assignor_name": found.assignor,
            "members": Lazy(lambda member: _member(context, member), found.members),
            "authorized_operations": groups.operations(context, group)
            if with_operations
            else admin.NO_OPERATIONS,
        }

    return groups.answered(context, lambda: context.services.groups.describe_consumers(group), shape, refuse)


def _member(context: Context, member: DescribedConsumerMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topics),
        "subscribed_topic_regex": member.regex,
        "assignment": {"topic_partitions": _named(context, member.assignment)},
        "target_assignment": {"topic_partitions": _named(context, member.target)},
        "member_type": _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    }


def _named(context: Context, partitions: Partitions) -> list[dict[str, Any]]:
    """Without partitions of topics that have been deleted: they have no name."""
    names = context.services.image.names_by_id
    return [
        each | {"topic_name": names[each["topic_id"]]}
        for each in groups.by_topic_id(partitions)
        if each["topic_id"] in names
    ]
