"""DescribeGroups (15), versions 0-6: state, protocol and members of groups. [S]

Metadata and assignments are shown of a stable group only: while it rebalances they are not valid.

Versions: 3 adds authorized operations; 4 the group instance id; 6 an error message, and says GROUP_ID_NOT_FOUND of a
group that does not exist (KIP-1043), which until then is merely Dead.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka import admin, groups
from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, Steps, error_fields
from ottla_broker.group.messages import DescribedGroup, DescribedMember, State
from ottla_broker.requests import Maybe
from ottla_broker.steps import begun
from ottla_core.errors import GroupIdNotFound, RequestError

OVERLAPS = True
READ_ONLY = True

_NOT_FOUND_FROM = 6


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_describe_all(context, request))


def _describe_all(context: Context, request: Request) -> Steps:
    fields = yield from request.fields_in_steps()
    with_operations = bool(fields.get("include_authorized_operations"))
    return (
        yield from groups.each_answered(
            fields["groups"], lambda group: _describe(context, group, request.version, with_operations)
        )
    )


def _describe(context: Context, group: str, version: int, with_operations: bool) -> Maybe[Reply]:
    def refuse(error: RequestError) -> Reply:
        return error_fields(error) | {"group_id": group, "authorized_operations": admin.NO_OPERATIONS}

    def shape(found: DescribedGroup) -> Reply:
        if found.state is State.DEAD and version >= _NOT_FOUND_FROM:
            missing = GroupIdNotFound(f"There is no group {group!r}.")
            return refuse(missing) | {"group_state": found.state.value}  # type: ignore[operator]
        return error_fields(None) | {
            "group_id": group,
            "group_state": found.state.value,
            "protocol_type": found.protocol_type,
            "protocol_data": found.protocol,
            "members": Lazy(_member, found.members),
            "authorized_operations": groups.operations(context, group)
            if with_operations
            else admin.NO_OPERATIONS,
        }

    return groups.answered(context, lambda: context.services.groups.describe(group), shape, refuse)


def _member(member: DescribedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }
