"""AlterPartitionReassignments (45), versions 0-1: move partitions to other brokers, or cancel moves (KIP-455).
Used by `kafka-reassign-partitions`. [S]

Null replicas cancel a move: the partition goes back to its former replicas. Answered when the moves have begun.

Versions: 1 lets a client refuse a change of the replication factor.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.controller.commands.move_partitions import Move
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_core.errors import RequestError


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _alter(context, request.fields())


async def _alter(context: Context, fields: dict[str, Any]) -> Reply:
    moves = [
        Move(topic["name"], item["partition_index"], _target(item["replicas"]))
        for topic in fields["topics"]
        for item in topic["partitions"]
    ]
    may_change = fields.get("allow_replication_factor_change", True)
    try:
        results = await context.services.cluster.move(
            moves, keep_replication_factor=not may_change, timeout_s=admin.timeout_s(fields["timeout"])
        )
    except RequestError as error:
        refused = {"allow_replication_factor_change": may_change, "responses": []}
        return admin.outcome(context, error) | refused
    topics: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        outcome = {"partition_index": result.partition} | admin.outcome(context, result.error)
        topics.setdefault(result.topic, []).append(outcome)
    return error_fields(None) | {
        "allow_replication_factor_change": may_change,
        "responses": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }


def _target(replicas: list[int] | None) -> tuple[int, ...] | None:
    return None if replicas is None else tuple(replicas)
