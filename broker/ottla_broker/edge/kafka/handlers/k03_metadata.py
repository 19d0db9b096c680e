"""Metadata (3), versions 0-13: brokers, topics, and who leads what. [S]

Brokers are told by their addresses on the listener that was asked.

Which topics: version 0 takes an empty list for all; from version 1 on null means all and an empty list
none. Topics that are asked for by name and do not exist are created first, if the broker is set so and the
client agrees (from version 4 on it can decline). From version 10 on topics can be asked for by id.

Versions: 1 adds the controller, racks and internal topics; 2 the cluster id; 5 offline replicas; 7 leader
epochs; 9 is flexible; 10 topic ids; 13 an error for the whole answer. Left out: allowed operations are
never told (there are no ACLs yet): -2147483648, "not asked for".
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NamedTuple
from uuid import UUID

from ottla_broker.controller.names import check_topic_name
from ottla_broker.edge.kafka import metadata_cache as wire
from ottla_broker.edge.kafka.request import Context, Encoded, Reply, Request
from ottla_broker.requests import Maybe
from ottla_core.errors import (
    InvalidRequest,
    InvalidTopicException,
    RequestError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla_core.ids import NO_TOPIC_ID


class _Wanted(NamedTuple):
    name: str | None
    id: UUID = NO_TOPIC_ID


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    version = request.version
    wanted = _wanted(fields, version)
    topics, missing = context.services.image.topics, list[str]()
    if wanted is not None and fields.get("allow_auto_topic_creation", True):
        names = [w.name for w in wanted if w.name is not None]
        missing = [name for name in names if name not in topics and _is_legal(name)]
    settling = context.services.topics.settling(context.opened_at)
    if missing or settling is not None:
        return _answer_later(context, version, wanted, missing, settling)
    return _answer(context, version, wanted)


def _wanted(fields: dict[str, Any], version: int) -> list[_Wanted] | None:
    """None for all topics."""
    topics = fields["topics"]
    if topics is None or (version == 0 and not topics):
        return None
    wanted = [_Wanted(topic["name"], topic.get("topic_id", NO_TOPIC_ID)) for topic in topics]
    if any(w.name is None and (w.id == NO_TOPIC_ID or version < wire.TOPIC_IDS_FROM) for w in wanted):
        raise InvalidRequest("A topic is asked for with neither a name nor an id.")
    return list(dict.fromkeys(wanted))


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicException:
        return False
    return True


async def _answer_later(
    context: Context,
    version: int,
    wanted: list[_Wanted] | None,
    missing: list[str],
    settling: Awaitable[None] | None,
) -> Reply:
    """Create what is missing; when a broker was just lost, wait until it is known who leads instead."""
    if settling is not None:
        await settling
    if missing:
        await context.services.topics.ensure(missing)
    return _answer(context, version, wanted)


def _answer(context: Context, version: int, wanted: list[_Wanted] | None) -> Reply:
    image, cache = context.services.image, context.metadata_cache
    if wanted is None:
        topics = cache.all_topics(image, version)
    else:
        made = [_topic(context, version, each) for each in wanted]
        topics = wire.count(version, len(made)) + b"".join(made)
    return Encoded((cache.head(image, version), topics, wire.tail(version)))


def _topic(context: Context, version: int, wanted: _Wanted) -> bytes:
    image = context.services.image
    by_id = wanted.name is None
    topic = image.topic_by_id(wanted.id) if by_id else image.topics.get(wanted.name or "")
    if topic is not None:
        return context.metadata_cache.topic(image, topic, version)
    error: RequestError = UnknownTopicId() if by_id else UnknownTopicOrPartition()
    if not by_id and not _is_legal(wanted.name or ""):
        error = InvalidTopicException()
    return wire.encode_missing(version, context.failed(error), wanted.name, wanted.id.bytes)
