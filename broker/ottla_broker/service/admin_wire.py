"""JSON codec of administrative requests to the controller, and of their results. [P]

Both ends are brokers, possibly of different releases: a field that is missing has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from ottla_broker.requests import ConfigChange, NewTopic, TopicResult
from ottla_core.errors import RequestError, error_from_code


def new_topic_out(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "config": None if topic.config is None else dict(topic.config),
        "assignments": topic.assignments,
    }


def new_topic_in(fields: Mapping[str, Any]) -> NewTopic:
    return NewTopic(
        str(fields["name"]),
        int(fields.get("partitions", -1)),
        int(fields.get("replication_factor", -1)),
        fields.get("config"),
        assignments_in(fields.get("assignments")),
    )


def assignments_in(rows: Any) -> tuple[tuple[int, ...], ...] | None:
    return None if rows is None else tuple(tuple(int(b) for b in row) for row in rows)


def error_out(error: RequestError | None) -> dict[str, Any] | None:
    return None if error is None else {"code": error.code, "message": error.message}


def error_in(fields: Mapping[str, Any] | None) -> RequestError | None:
    return None if fields is None else error_from_code(int(fields["code"]), str(fields["message"]))


def topic_result_out(result: TopicResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "error": error_out(result.error),
        "id": None if result.topic_id is None else str(result.topic_id),
        "partitions": result.partitions,
        "replication_factor": result.replication_factor,
        "config": None if result.config is None else dict(result.config),
    }


def topic_result_in(fields: Mapping[str, Any]) -> TopicResult:
    topic_id = fields.get("id")
    return TopicResult(
        str(fields["name"]),
        error_in(fields.get("error")),
        None if topic_id is None else UUID(topic_id),
        int(fields.get("partitions", -1)),
        int(fields.get("replication_factor", -1)),
        fields.get("config"),
    )


def change_out(change: ConfigChange) -> list[str | None]:
    return [change.kind, change.name, change.value]


def change_in(row: list[Any]) -> ConfigChange:
    kind, name, value = row
    return ConfigChange(str(kind), str(name), None if value is None else str(value))
