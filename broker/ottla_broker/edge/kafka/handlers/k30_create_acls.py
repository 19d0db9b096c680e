"""CreateAcls (30), versions 1-3: new ACLs, each with its own outcome. Used by `kafka-acls --add`. [S]

Versions: 2 is flexible; 3 adds users as resources.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.acl import AclRow
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_core.errors import RequestError


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _create(context, request.fields()["creations"])


async def _create(context: Context, creations: list[dict[str, Any]]) -> Reply:
    rows = [
        AclRow(
            each["resource_type"],
            each["resource_pattern_type"],
            each["resource_name"],
            each["principal"],
            each["host"],
            each["operation"],
            each["permission_type"],
        )
        for each in creations
    ]
    try:
        errors = await context.services.acls.create(rows)
    except RequestError as error:
        errors = [error] * len(rows)
    return {"results": [admin.outcome(context, error) for error in errors]}
