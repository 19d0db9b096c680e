"""OffsetFetch (9), versions 1-10: how far groups have read. [S]

No topics at all (null, from 2 on) asks for everything that the group has committed. Nothing committed is offset -1
without an error.

Versions: 2 adds an error for the group; 5 the leader epoch; 7 `require_stable` (KIP-447: offsets that an open
transaction is about to change are refused); 8 asks for several groups at once (KIP-709); 9 carries a member's epoch,
which classic groups ignore, as in Kafka, and broker-side groups check (KIP-848); 10 names topics by id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NamedTuple

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import FetchedOffset, FetchReply
from ottla_broker.requests import Maybe
from ottla_broker.steps import PARTITIONS_PER_STEP, Slice, Steps, begun
from ottla_core.errors import RequestError, UnknownTopicId
from ottla_core.ids import TopicPartition

OVERLAPS = True

_BATCHED_FROM = 8
_GROUP_ERROR_FROM = 2
_BY_ID_FROM = 10


class _Asked(NamedTuple):
    group: str
    #: None for everything that is committed.
    topics: list[groups.NamedTopic] | None
    reply: Maybe[FetchReply] | RequestError


def handle(context: Context, request: Request) -> Any:
    return begun(_fetch(context, request))


def _fetch(context: Context, request: Request) -> Steps[Maybe[Reply | Steps[Reply]]]:
    version = request.version
    fields = yield from request.fields_in_steps()
    wanted = [fields] if version < _BATCHED_FROM else fields["groups"]
    stable = bool(fields.get("require_stable", False))
    asked: list[_Asked] = []
    taken = Slice(4 * PARTITIONS_PER_STEP)
    for group in wanted:
        asked.append((yield from _ask(context, group, stable, taken)))
        if taken.over(8):
            yield None
    if any(isinstance(each.reply, Awaitable) for each in asked):
        return _later(context, version, asked)
    return (yield from _reply(context, version, asked))


def _ask(context: Context, group: dict[str, Any], stable: bool, taken: Slice) -> Steps[_Asked]:
    topics, partitions = None, None
    if group["topics"] is not None:
        topics = yield from groups.with_names_in_steps(context, group["topics"])
        partitions = []
        for name, topic in topics:
            if name is None:
                continue
            for index in topic["partition_indexes"]:
                partitions.append(TopicPartition(name, index))
                if taken.over():
                    yield None
    try:
        reply: Any = context.services.groups.fetch(
            group["group_id"],
            partitions,
            member_id=group.get("member_id") or "",
            member_epoch=group.get("member_epoch", -1),
            require_stable=stable,
        )
    except RequestError as error:
        reply = error
    return _Asked(group["group_id"], topics, reply)


async def _later(context: Context, version: int, asked: list[_Asked]) -> Steps[Reply]:
    answered = []
    for each in asked:
        reply = each.reply
        if isinstance(reply, Awaitable):
            try:
                reply = await reply
            except RequestError as error:
                reply = error
        answered.append(each._replace(reply=reply))
    return _reply(context, version, answered)


def _reply(context: Context, version: int, asked: list[_Asked]) -> Steps[Reply]:
    answers: list[dict[str, Any]] = []
    taken = Slice(4 * PARTITIONS_PER_STEP)
    for each in asked:
        answer = yield from _group(context, version, each)
        answers.append(answer)
        if taken.over():
            yield None
    return {"groups": answers} if version >= _BATCHED_FROM else answers[0]


def _group(context: Context, version: int, asked: _Asked) -> Steps[dict[str, Any]]:
    reply: Any = asked.reply
    if isinstance(reply, RequestError):
        code = context.failed(reply, "OffsetFetch")
        if version >= _GROUP_ERROR_FROM:
            return {"group_id": asked.group, "error_code": code, "topics": []}
    topics: Lazy[Any]
    if asked.topics is None:
        topics = yield from _everything(context, version, reply)
    else:
        topics = Lazy(lambda named: _topic(context, named, reply), asked.topics)
    return {"group_id": asked.group, "error_code": 0, "topics": topics}


def _topic(context: Context, named: groups.NamedTopic, reply: FetchReply | RequestError) -> dict[str, Any]:
    name, topic = named

    def partition(index: int) -> dict[str, Any]:
        tp = TopicPartition(name or "", index)
        if isinstance(reply, RequestError):
            found = FetchedOffset(tp, error=reply)
        elif name is None:
            found = FetchedOffset(tp, error=UnknownTopicId())
        else:
            found = reply.of(tp)
        return _partition(context, found)

    return groups.same_topic(topic, Lazy(partition, topic["partition_indexes"]))


def _everything(context: Context, version: int, reply: FetchReply | RequestError) -> Steps[Lazy[str]]:
    if isinstance(reply, RequestError):
        return Lazy(str, ())
    by_topic: dict[str, list[TopicPartition]] = {}
    taken = Slice(8 * PARTITIONS_PER_STEP)
    for tp in reply.partitions:
        by_topic.setdefault(tp.topic, []).append(tp)
        if taken.over():
            yield None
    known = context.services.image.topics
    shown = [name for name in by_topic if version < _BY_ID_FROM or name in known]

    def topic(name: str) -> dict[str, Any]:
        partitions = Lazy(lambda tp: _partition(context, reply.of(tp)), by_topic[name])
        key = {"name": name} if version < _BY_ID_FROM else {"topic_id": known[name].id}
        return key | {"partitions": partitions}

    return Lazy(topic, shown)


def _partition(context: Context, found: FetchedOffset) -> dict[str, Any]:
    return {
        "partition_index": found.tp.partition,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": groups.code(context, found.error),
    }
