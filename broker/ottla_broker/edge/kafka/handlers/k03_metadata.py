"""Metadata (3), versions 0-13: brokers, topics, and leaders. [S]

Brokers have their addresses on the listener of the request.

Which topics: version 0 takes an empty list for all; from version 1 on null means all and an empty list
none. Topics that are asked for by name and do not exist are created first, if the broker is set so and the
client agrees (from version 4 on it can decline). From version 10 on topics can be asked for by id; then a
name that comes with it means nothing, and Java's client sends an empty one.

Versions: 1 adds the controller, racks and internal topics; 2 the cluster id; 5 offline replicas; 7 leader
epochs; 8 allowed operations; 9 is flexible; 10 topic ids; 13 an error for the whole answer.

Only topics that the caller may describe are listed; one that it asks for by name is refused, whether it exists or not,
and one that it asks for by id is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, NamedTuple
from uuid import UUID

from ottla_broker.acl import CLUSTER_NAME, Operation, ResourceType
from ottla_broker.controller.names import check_topic_name, no_such_topic
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka import metadata_cache as wire
from ottla_broker.edge.kafka.request import Context, Encoded, Reply, Request, Steps
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.requests import Maybe
from ottla_broker.steps import Slice, begun, kept
from ottla_core.errors import InvalidRequest, InvalidTopicException, UnknownTopicId
from ottla_core.ids import NO_TOPIC_ID

#: Requested topics that are read in one slice, and answered: one and twenty microseconds each.
_NAMES_PER_STEP = 500
_TOPICS_PER_STEP = 32


class _Wanted(NamedTuple):
    #: None if it is asked for by its id.
    name: str | None
    id: UUID = NO_TOPIC_ID


class _Asked(NamedTuple):
    version: int
    #: None for all topics.
    topics: list[_Wanted] | None
    creates: bool
    topic_operations: bool
    cluster_operations: bool


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_handle(context, request))


def _handle(context: Context, request: Request) -> Steps:
    fields = yield from request.fields_in_steps()
    asked = _Asked(
        request.version,
        (yield from _wanted(fields, request.version)),
        fields.get("allow_auto_topic_creation", True),
        fields.get("include_topic_authorized_operations", False),
        fields.get("include_cluster_authorized_operations", False),
    )
    topics, missing = context.services.image.topics, list[str]()
    if asked.topics is not None and asked.creates:
        names = [w.name for w in asked.topics if w.name is not None and w.name not in topics]
        missing = yield from kept(names, _is_legal)
    settling = context.services.topics.settling(context.opened_at)
    if missing or settling is not None:
        return _answer_later(context, asked, missing, settling)
    return (yield from _answer(context, asked))


def _wanted(fields: dict[str, Any], version: int) -> Generator[None, None, list[_Wanted] | None]:
    """None for all topics."""
    topics = fields["topics"]
    if topics is None or (version == 0 and not topics):
        return None
    wanted: dict[_Wanted, None] = {}
    part = Slice(_NAMES_PER_STEP)
    for topic in topics:
        topic_id = topic.get("topic_id", NO_TOPIC_ID)
        if topic["name"] is None and topic_id == NO_TOPIC_ID:
            raise InvalidRequest("A requested topic has neither a name nor an id.")
        wanted[_Wanted(topic["name"] if topic_id == NO_TOPIC_ID else None, topic_id)] = None
        if part.over():
            yield
    return list(wanted)


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicException:
        return False
    return True


async def _answer_later(
    context: Context, asked: _Asked, missing: list[str], settling: Awaitable[None] | None
) -> Reply | Steps:
    """Create missing topics; when a broker was just lost, wait until new leaders are known."""
    if settling is not None:
        await settling
    if missing:
        await context.services.topics.ensure(missing)
    return begun(_answer(context, asked))


def _answer(context: Context, asked: _Asked) -> Generator[None, None, Reply]:
    # One image for all slices: an answer shows the cluster at one moment.
    image, cache, version = context.services.image, context.metadata_cache, asked.version
    access = context.services.access
    if asked.topics is None and not asked.topic_operations and access.is_full:
        topics = cache.all_topics(image, version)
    else:
        wanted = asked.topics
        if wanted is None:
            describes = access.allows
            wanted = [
                _Wanted(name)
                for name in image.topics
                if describes(Operation.DESCRIBE, ResourceType.TOPIC, name)
            ]
        made: list[bytes] = []
        part = Slice(_TOPICS_PER_STEP)
        for each in wanted:
            made.append(_topic(context, asked, each, image))
            if part.over():
                yield
        topics = wire.count(version, len(made)) + b"".join(made)
    operations = admin.cluster_operations(context) if asked.cluster_operations else admin.NO_OPERATIONS
    return Encoded((cache.head(image, version), topics, wire.tail(version, operations)))


def _topic(context: Context, asked: _Asked, wanted: _Wanted, image: ClusterImage) -> bytes:
    by_id = wanted.name is None
    topic = image.topic_by_id(wanted.id) if by_id else image.topics.get(wanted.name or "")
    access = context.services.access
    name = wanted.name or "" if topic is None else topic.name
    if (topic is not None or not by_id) and not access.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
        # Nobody learns the name of an id, nor whether a name exists.
        hidden = UnknownTopicId() if by_id else access.refusal(Operation.DESCRIBE, ResourceType.TOPIC, name)
        return wire.encode_missing(asked.version, context.failed(hidden), wanted.name, wanted.id.bytes)
    if topic is not None:
        made = context.metadata_cache.topic(image, topic, asked.version)
        return (
            wire.with_operations(asked.version, made, access.operations(ResourceType.TOPIC, topic.name))
            if asked.topic_operations
            else made
        )
    error = UnknownTopicId() if by_id else no_such_topic(name)
    if not by_id and asked.creates and _is_legal(name) and not _may_create(context, name):
        error = access.refusal(Operation.CREATE, ResourceType.TOPIC, name)
    return wire.encode_missing(asked.version, context.failed(error), wanted.name, wanted.id.bytes)


def _may_create(context: Context, name: str) -> bool:
    """Also where topics are not created by asking for them."""
    access = context.services.access
    return (
        access.is_full
        or not context.services.topics.creates_missing
        or access.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        or access.allows(Operation.CREATE, ResourceType.TOPIC, name)
    )
