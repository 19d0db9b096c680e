"""DeleteTopics (20), versions 1-6: remove topics by name or, from version 6 on, by id. [S]

A topic that is named twice, or by name and id in one item, is refused. An id is looked up when the request
arrives.

Versions: 5 adds a sentence to each error and refuses what exceeds controller_mutation_rate (KIP-599); 6 topic ids, in
requests and answers (KIP-516).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from ottla_broker.acl import Operation, ResourceType
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import TopicResult
from ottla_broker.service.throttling import Mutations
from ottla_core.errors import InvalidRequest, RequestError, UnknownTopicId
from ottla_core.ids import NO_TOPIC_ID

_STRICT_FROM = 5


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _delete(context, request.fields(), admin.mutations(context, request, _STRICT_FROM))


async def _delete(context: Context, fields: dict[str, Any], quota: Mutations) -> Reply:
    items = fields["topics"] if "topics" in fields else [{"name": name} for name in fields["topic_names"]]
    responses: list[dict[str, Any]] = []
    ids_by_name = {}
    found: list[str] = []
    for item in items:
        name, topic_id = item["name"], item.get("topic_id", NO_TOPIC_ID)
        try:
            name = _resolve(context, name, topic_id)
            found.append(name)
        except RequestError as error:
            responses.append({"name": name, "topic_id": topic_id} | admin.outcome(context, error))
            continue
        topic = context.services.image.topics.get(name)
        ids_by_name[name] = topic_id if topic is None else topic.id
    twice = admin.repeated(found)
    refusal = InvalidRequest("The topic is named twice in one request.")
    results = [TopicResult(name, refusal) for name in sorted(twice)]
    once = [name for name in found if name not in twice]
    results += await _deleted(context, once, fields["timeout"], quota)
    for result in results:
        named = {"name": result.name, "topic_id": ids_by_name[result.name]}
        responses.append(named | admin.outcome(context, result.error))
    return {"responses": responses} | admin.throttle_fields(quota)


def _resolve(context: Context, name: str | None, topic_id: Any) -> str:
    if name is not None:
        if topic_id != NO_TOPIC_ID:
            raise InvalidRequest("A topic is deleted by its name or by its id, not by both.")
        return name
    topic, access = context.services.image.topic_by_id(topic_id), context.services.access
    if topic is None or not access.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
        raise UnknownTopicId(f"No topic has the id {topic_id}.")
    return topic.name


async def _deleted(
    context: Context, names: Sequence[str], timeout_ms: int, quota: Mutations
) -> list[TopicResult]:
    if not names:
        return []
    try:
        return await context.services.topics.delete(
            names, timeout_s=admin.timeout_s(timeout_ms), mutations=quota
        )
    except RequestError as error:
        return [TopicResult(name, error) for name in names]
