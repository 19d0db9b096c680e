"""TxnOffsetCommit (28), versions 0-5: offsets of a group that count when a transaction commits. [S]

Sent to the group's coordinator, which verifies with the transaction's that the group is part of the transaction.

Versions: 2 adds the leader epoch; 3 the member and its generation (KIP-447); 5 adds the group to the transaction, which
replaces AddOffsetsToTxn (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, Steps
from ottla_broker.group.messages import CommitReply, OffsetToCommit
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_broker.steps import PARTITIONS_PER_STEP, Slice, begun
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

_ADDS_FROM = 5


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_commit(context, request))


def _commit(context: Context, request: Request) -> Steps:
    fields = yield from request.fields_in_steps()
    topics: list[dict[str, Any]] = fields["topics"]
    offsets: list[OffsetToCommit] = []
    taken = Slice(4 * PARTITIONS_PER_STEP)
    for topic in topics:
        for each in topic["partitions"]:
            offsets.append(
                OffsetToCommit(
                    TopicPartition(topic["name"], each["partition_index"]),
                    each["committed_offset"],
                    each.get("committed_leader_epoch", -1),
                    each["committed_metadata"] or "",
                )
            )
            if taken.over():
                yield None
    try:
        reply = yield from context.services.transactions.commit_offsets(
            fields["transactional_id"],
            ProducerIdentity(fields["producer_id"], fields["producer_epoch"]),
            fields["group_id"],
            fields.get("generation_id", -1),
            fields.get("member_id", ""),
            fields.get("group_instance_id") or None,
            offsets,
            adds=request.version >= _ADDS_FROM,
        )
    except RequestError as error:
        reply = CommitReply((error,) * len(offsets))
    if isinstance(reply, Awaitable):
        return _later(context, topics, reply, len(offsets))
    return _reply(context, topics, reply)


async def _later(
    context: Context, topics: list[dict[str, Any]], reply: Awaitable[CommitReply], count: int
) -> Reply:
    try:
        found = await reply
    except RequestError as error:
        found = CommitReply((error,) * count)
    return _reply(context, topics, found)


def _reply(context: Context, topics: list[dict[str, Any]], reply: CommitReply) -> Reply:
    errors = iter(reply.errors)

    def partition(each: dict[str, Any]) -> dict[str, Any]:
        return {"partition_index": each["partition_index"], "error_code": groups.code(context, next(errors))}

    def topic(each: dict[str, Any]) -> dict[str, Any]:
        return {"name": each["name"], "partitions": Lazy(partition, each["partitions"])}

    return {"topics": Lazy(topic, topics)}
