"""OffsetCommit (8), versions 2-10: remember how far a group has read. [S]

Answered when the offsets are committed on all in-sync replicas; further commits of the connection need not wait for
that. A refusal of the whole group goes to each partition: there is no other place.

Versions: 2-4 carry a retention time; 6 adds the leader epoch, 7 the group instance id (KIP-345); from 9 on the
generation may be the epoch of a member of a broker-side group (KIP-848); 10 names topics by id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, Steps
from ottla_broker.group.messages import CommitReply, OffsetToCommit
from ottla_broker.requests import Maybe
from ottla_broker.steps import PARTITIONS_PER_STEP, Slice, begun
from ottla_core.errors import RequestError, UnknownTopicId
from ottla_core.ids import TopicPartition

OVERLAPS = True


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_commit(context, request))


def _commit(context: Context, request: Request) -> Steps:
    fields = yield from request.fields_in_steps()
    topics = yield from groups.with_names_in_steps(context, fields["topics"])
    retention_ms = fields.get("retention_time", -1)
    offsets: list[OffsetToCommit] = []
    taken = Slice(4 * PARTITIONS_PER_STEP)
    for name, topic in topics:
        if name is None:
            continue
        for each in topic["partitions"]:
            offsets.append(
                OffsetToCommit(
                    TopicPartition(name, each["partition_index"]),
                    each["committed_offset"],
                    each.get("committed_leader_epoch", -1),
                    each["committed_metadata"] or "",
                )
            )
            if taken.over():
                yield None
    try:
        reply = yield from context.services.groups.commit_in_steps(
            fields["group_id"],
            fields["generation_id_or_member_epoch"],
            fields["member_id"],
            fields.get("group_instance_id") or None,
            offsets,
            retention_ms=None if retention_ms == -1 else retention_ms,
        )
    except RequestError as error:
        reply = _refused(context, error, len(offsets))
    if isinstance(reply, Awaitable):
        return _later(context, topics, reply, len(offsets))
    return _reply(context, topics, reply)


async def _later(
    context: Context, topics: list[groups.NamedTopic], reply: Awaitable[CommitReply], count: int
) -> Reply:
    try:
        found = await reply
    except RequestError as error:
        found = _refused(context, error, count)
    return _reply(context, topics, found)


def _refused(context: Context, error: RequestError, count: int) -> CommitReply:
    context.failed(error, "OffsetCommit")
    return CommitReply((error,) * count)


def _reply(context: Context, topics: list[groups.NamedTopic], reply: CommitReply) -> Reply:
    errors = iter(reply.errors)
    unknown = UnknownTopicId()

    def topic(named: groups.NamedTopic) -> dict[str, Any]:
        name, asked = named

        def partition(each: dict[str, Any]) -> dict[str, Any]:
            error = unknown if name is None else next(errors)
            return {"partition_index": each["partition_index"], "error_code": groups.code(context, error)}

        return groups.same_topic(asked, Lazy(partition, asked["partitions"]))

    return {"topics": Lazy(topic, topics)}
