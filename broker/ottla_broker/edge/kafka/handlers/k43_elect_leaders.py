"""ElectLeaders (43), versions 0-2: preferred leaders, or unclean elections, on demand. Used by
`kafka-leader-election`. [S]

Null partitions ask for all of the cluster; those that need no election are then left out of the answer.

Versions: 1 has the type of the election and an error of its own; 2 is the flexible form.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_core.errors import InvalidRequest, RequestError

_PREFERRED, _UNCLEAN = 0, 1


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _elect(context, request.fields())


async def _elect(context: Context, fields: dict[str, Any]) -> Reply:
    asked = fields["topic_partitions"]
    # A topic without partitions asks for nothing.
    chosen = None if asked is None else {t["topic"]: t["partitions"] for t in asked if t["partitions"]}
    try:
        kind = fields.get("election_type", _PREFERRED)
        if kind not in (_PREFERRED, _UNCLEAN):
            raise InvalidRequest(
                f"{kind} is not a type of election; those are 0 (preferred) and 1 (unclean)."
            )
        results = await context.services.cluster.elect(
            chosen, unclean=kind == _UNCLEAN, timeout_s=admin.timeout_s(fields["timeout"])
        )
    except RequestError as error:
        return {"error_code": context.failed(error), "replica_election_results": []}
    topics: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        outcome = {"partition_id": result.partition} | admin.outcome(context, result.error)
        topics.setdefault(result.topic, []).append(outcome)
    return {
        "error_code": 0,
        "replica_election_results": [
            {"topic": name, "partition_result": partitions} for name, partitions in topics.items()
        ],
    }
