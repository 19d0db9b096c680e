"""AlterClientQuotas (49), versions 0-1: set and remove quotas. Used by `kafka-configs --alter`. [S]

Each entry has its own outcome. Versions: 1 is flexible.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.controller.commands.alter_quotas import QuotaChange
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.quota import DEFAULT
from ottla_core.errors import InvalidRequest, RequestError


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _alter(context, request.fields())


async def _alter(context: Context, fields: dict[str, Any]) -> Reply:
    errors: list[RequestError | None] = []
    changes: list[QuotaChange] = []
    for entry in fields["entries"]:
        try:
            changes.append(_change(entry))
            errors.append(None)
        except RequestError as error:
            errors.append(error)
    try:
        outcomes = iter(await context.services.quotas.alter(changes, validate_only=fields["validate_only"]))
        errors = [next(outcomes) if error is None else error for error in errors]
    except RequestError as error:
        errors = [error] * len(errors)
    return {
        "entries": [
            admin.outcome(context, error) | {"entity": entry["entity"]}
            for entry, error in zip(fields["entries"], errors, strict=True)
        ]
    }


def _change(entry: dict[str, Any]) -> QuotaChange:
    names = {each["entity_type"]: each["entity_name"] or DEFAULT for each in entry["entity"]}
    if not names or not names.keys() <= {"user", "client-id", "ip"} or len(names) < len(entry["entity"]):
        raise InvalidRequest("A quota is that of a user, a client-id, both, or an ip.")
    return QuotaChange(
        names.get("user"),
        names.get("client-id"),
        {op["key"]: op["value"] for op in entry["ops"] if not op["remove"]},
        tuple(op["key"] for op in entry["ops"] if op["remove"]),
        names.get("ip"),
    )
