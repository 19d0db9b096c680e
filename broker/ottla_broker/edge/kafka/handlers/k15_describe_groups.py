"""DescribeGroups (15), versions 0-6: state, protocol and members of groups. [S]

Metadata and assignments are shown of a stable group only: while it rebalances they are not valid.

Versions: 3 adds authorized operations; 4 the group instance id; 6 an error message, and says GROUP_ID_NOT_FOUND of a
group that does not exist (KIP-1043), which until then is merely Dead.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import admin, groups
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_broker.group.messages import DescribedGroup, DescribedMember, State
from ottla_broker.requests import Maybe
from ottla_core.errors import GroupIdNotFound, RequestError

OVERLAPS = True
READ_ONLY = True

_NOT_FOUND_FROM = 6


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    with_operations = bool(fields.get("include_authorized_operations"))
    answers = [_describe(context, group, request.version, with_operations) for group in fields["groups"]]
    if any(isinstance(answer, Awaitable) for answer in answers):
        return _all(answers)
    return {"groups": answers}


async def _all(answers: list[Maybe[Reply]]) -> Reply:
    return {"groups": [await each if isinstance(each, Awaitable) else each for each in answers]}


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
            "members": [_member(each) for each in found.members],
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
