"""CreatePartitions (37), versions 0-3: give topics more partitions; they never get fewer. [S]

Versions: 2 is the flexible form, 3 refuses what exceeds controller_mutation_rate (KIP-599).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.service.throttling import Mutations
from ottla_core.errors import InvalidRequest, RequestError

_STRICT_FROM = 3


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _grow(context, request.fields(), admin.mutations(context, request, _STRICT_FROM))


async def _grow(context: Context, fields: dict[str, Any], quota: Mutations) -> Reply:
    results = []
    twice = admin.repeated(topic["name"] for topic in fields["topics"])
    for topic in fields["topics"]:
        error: RequestError | None
        try:
            if topic["name"] in twice:
                raise InvalidRequest(f"Topic {topic['name']!r} is named twice in one request.")
            grown = await context.services.topics.grow(
                topic["name"],
                topic["count"],
                _assignments(topic["assignments"]),
                validate_only=fields["validate_only"],
                timeout_s=admin.timeout_s(fields["timeout"]),
                mutations=quota,
            )
            error = grown.error
        except RequestError as refused:
            error = refused
        results.append({"name": topic["name"]} | admin.outcome(context, error))
    return {"results": results} | admin.throttle_fields(quota)


def _assignments(given: list[dict[str, Any]] | None) -> tuple[tuple[int, ...], ...] | None:
    """One tuple of brokers per new partition; null leaves the choice to the controller."""
    return None if given is None else tuple(tuple(item["broker_ids"]) for item in given)
