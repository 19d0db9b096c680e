"""OffsetFetch (9), versions 1-10: how far groups have read. [S]

No topics at all (null, from 2 on) asks for everything that the group has committed. Nothing committed is offset -1
without an error.

Versions: 2 adds an error for the group; 5 the leader epoch; 7 `require_stable` (KIP-447: offsets that an open
transaction is about to change are refused); 8 asks for several groups at once (KIP-709); 9 carries a member's epoch,
which classic groups ignore, as in Kafka, and broker-side groups check (KIP-848); 10 names topics by id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import FetchedOffset, FetchReply
from ottla_broker.requests import Maybe
from ottla_core.errors import RequestError, UnknownTopicId
from ottla_core.ids import TopicPartition

OVERLAPS = True

_BATCHED_FROM = 8
_GROUP_ERROR_FROM = 2
_BY_ID_FROM = 10


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields, version = request.fields(), request.version
    if version < _BATCHED_FROM:
        return _group(context, fields, version, bool(fields.get("require_stable", False)))
    stable = bool(fields["require_stable"])
    answers = [_group(context, group, version, stable) for group in fields["groups"]]
    if any(isinstance(answer, Awaitable) for answer in answers):
        return _all(answers)
    return {"groups": answers}


async def _all(answers: list[Maybe[Reply]]) -> Reply:
    return {"groups": [await each if isinstance(each, Awaitable) else each for each in answers]}


def _group(context: Context, asked: dict[str, Any], version: int, require_stable: bool) -> Maybe[Reply]:
    topics = None if asked["topics"] is None else groups.with_names(context, asked["topics"])
    wanted = None if topics is None else _wanted(topics)
    group_id = asked["group_id"]

    def shape(reply: FetchReply) -> Reply:
        found = _everything(context, reply, version) if topics is None else _asked(context, topics, reply)
        return {"group_id": group_id, "error_code": 0, "topics": found}

    def refuse(error: RequestError) -> Reply:
        if version >= _GROUP_ERROR_FROM:
            return {"group_id": group_id, "error_code": error.code, "topics": []}
        nothing = FetchReply(tuple(FetchedOffset(tp, error=error) for tp in wanted or ()))
        return {"topics": _asked(context, topics or [], nothing)}

    return groups.answered(
        context,
        lambda: context.services.groups.fetch(
            group_id,
            wanted,
            member_id=asked.get("member_id") or "",
            member_epoch=asked.get("member_epoch", -1),
            require_stable=require_stable,
        ),
        shape,
        refuse,
    )


def _wanted(topics: list[groups.NamedTopic]) -> list[TopicPartition]:
    return [
        TopicPartition(name, index)
        for name, topic in topics
        if name is not None
        for index in topic["partition_indexes"]
    ]


def _asked(context: Context, topics: list[groups.NamedTopic], reply: FetchReply) -> list[dict[str, Any]]:
    """The offsets in the order of the request."""
    found = iter(reply.offsets)
    answer = []
    for name, topic in topics:
        partitions = [
            _partition(
                context,
                FetchedOffset(TopicPartition("", index), error=UnknownTopicId())
                if name is None
                else next(found),
            )
            for index in topic["partition_indexes"]
        ]
        answer.append(groups.same_topic(topic, partitions))
    return answer


def _everything(context: Context, reply: FetchReply, version: int) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for each in reply.offsets:
        by_topic.setdefault(each.tp.topic, []).append(_partition(context, each))
    known = context.services.image.topics
    return [
        {"name": name, "partitions": partitions}
        if version < _BY_ID_FROM
        else {"topic_id": known[name].id, "partitions": partitions}
        for name, partitions in by_topic.items()
        if version < _BY_ID_FROM or name in known
    ]


def _partition(context: Context, found: FetchedOffset) -> dict[str, Any]:
    return {
        "partition_index": found.tp.partition,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": groups.code(context, found.error),
    }
