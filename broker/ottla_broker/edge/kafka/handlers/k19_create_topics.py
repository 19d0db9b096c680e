"""CreateTopics (19), versions 2-7: new topics, each with its own outcome. [S]

A topic that is named twice in one request is refused, both times, as Kafka does: it is unclear which of
the two was meant. With an explicit assignment, count and replication factor must be -1.

Versions: 4 allows -1 for count and factor (ours allows it always); 5 answers with count, factor and settings
(KIP-525); 6 refuses what exceeds controller_mutation_rate (KIP-599); 7 answers with the topic id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from ottla_broker.acl import Operation, ResourceType
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import NewTopic, TopicResult
from ottla_broker.service.throttling import Mutations
from ottla_core.errors import (
    InvalidReplicaAssignment,
    InvalidRequest,
    RequestError,
    TopicAuthorizationFailed,
)

_STRICT_FROM = 6
_NOTHING_MADE = {"num_partitions": -1, "replication_factor": -1, "configs": None}


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _create(context, request.fields(), admin.mutations(context, request, _STRICT_FROM))


async def _create(context: Context, fields: dict[str, Any], quota: Mutations) -> Reply:
    refused: dict[str, RequestError] = {}
    wanted: list[NewTopic] = []
    twice = admin.repeated(topic["name"] for topic in fields["topics"])
    for topic in fields["topics"]:
        try:
            if topic["name"] in twice:
                raise InvalidRequest(f"Topic {topic['name']!r} is named twice in one request.")
            wanted.append(_new_topic(topic))
        except RequestError as error:
            refused[topic["name"]] = error
    results = [TopicResult(name, error) for name, error in refused.items()]
    if wanted:
        results += await _created(context, wanted, fields, quota)
    settings = {topic.name: topic.config or {} for topic in wanted}
    answers = [_topic_fields(context, result, settings) for result in results]
    return {"topics": answers} | admin.throttle_fields(quota)


async def _created(
    context: Context, wanted: Sequence[NewTopic], fields: dict[str, Any], quota: Mutations
) -> list[TopicResult]:
    try:
        return await context.services.topics.create(
            wanted,
            validate_only=fields["validate_only"],
            timeout_s=admin.timeout_s(fields["timeout"]),
            mutations=quota,
        )
    except RequestError as error:
        return [TopicResult(topic.name, error) for topic in wanted]


def _new_topic(topic: dict[str, Any]) -> NewTopic:
    config = {setting["name"]: setting["value"] for setting in topic["configs"]}
    if not topic["assignments"]:
        return NewTopic(topic["name"], topic["num_partitions"], topic["replication_factor"], config)
    if topic["num_partitions"] != -1 or topic["replication_factor"] != -1:
        raise InvalidRequest(
            "With an explicit assignment, partition count and replication factor must be -1."
        )
    return NewTopic(topic["name"], config=config, assignments=_assignments(topic["assignments"]))


def _assignments(given: Sequence[dict[str, Any]]) -> tuple[tuple[int, ...], ...]:
    by_partition = {item["partition_index"]: tuple(item["broker_ids"]) for item in given}
    if sorted(by_partition) != list(range(len(given))):
        raise InvalidReplicaAssignment("An assignment must name each partition from 0 upwards exactly once.")
    return tuple(by_partition[partition] for partition in range(len(given)))


def _topic_fields(
    context: Context, result: TopicResult, settings: Mapping[str, Mapping[str, str | None]]
) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": result.name} | admin.outcome(context, result.error)
    if result.error is not None:
        return fields | _NOTHING_MADE
    if result.topic_id is not None:
        fields["topic_id"] = result.topic_id
    access = context.services.access
    if not access.allows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name):
        return fields | _NOTHING_MADE | {"topic_config_error_code": TopicAuthorizationFailed.code}
    return fields | {
        "num_partitions": result.partitions,
        "replication_factor": result.replication_factor,
        "configs": _configs(context, settings[result.name]),
    }


def _configs(context: Context, own: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """The settings in force, defaults included, also of a topic that was only checked: Java's client wants them."""
    given = {name: value for name, value in own.items() if value is not None}
    values = context.services.configs.describe_new_topic(given)
    return [admin.config_fields(value, synonyms=False, documentation=False) for value in values]
