"""DeleteGroups (42), versions 0-2: delete groups without members, and their offsets. [S]"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe


def handle(context: Context, request: Request) -> Maybe[Reply]:
    answers = [_delete(context, group) for group in request.fields()["groups_names"]]
    if any(isinstance(answer, Awaitable) for answer in answers):
        return _all(answers)
    return {"results": answers}


async def _all(answers: list[Maybe[Reply]]) -> Reply:
    return {"results": [await each if isinstance(each, Awaitable) else each for each in answers]}


def _delete(context: Context, group: str) -> Maybe[Reply]:
    return groups.answered(
        context,
        lambda: context.services.groups.delete(group),
        lambda reply: {"group_id": group, "error_code": 0},
        lambda error: {"group_id": group, "error_code": error.code},
    )
