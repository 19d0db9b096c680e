"""DeleteAcls (31), versions 1-3: delete what filters match, and answer with it. Used by `kafka-acls --remove`. [S]

Versions: 2 is flexible; 3 adds users as resources.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from ottla_broker.acl import Binding
from ottla_broker.acl_filter import AclFilter
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_core.errors import RequestError


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _delete(context, request.fields()["filters"])


async def _delete(context: Context, filters: list[dict[str, Any]]) -> Reply:
    wanted = [
        AclFilter(
            each["resource_type_filter"],
            each["pattern_type_filter"],
            each["resource_name_filter"],
            each["principal_filter"],
            each["host_filter"],
            each["operation"],
            each["permission_type"],
        )
        for each in filters
    ]
    outcomes: Sequence[list[Binding] | RequestError]
    try:
        outcomes = await context.services.acls.delete(wanted)
    except RequestError as error:
        outcomes = [error] * len(wanted)
    return {"filter_results": [_result(context, outcome) for outcome in outcomes]}


def _result(context: Context, outcome: list[Binding] | RequestError) -> dict[str, Any]:
    if isinstance(outcome, RequestError):
        return admin.outcome(context, outcome) | {"matching_acls": []}
    return error_fields(None) | {
        "matching_acls": [
            error_fields(None)
            | {
                "resource_type": int(pattern.type),
                "resource_name": pattern.name,
                "pattern_type": int(pattern.pattern_type),
                "principal": entry.principal,
                "host": entry.host,
                "operation": int(entry.operation),
                "permission_type": int(entry.permission),
            }
            for pattern, entry in outcome
        ]
    }
