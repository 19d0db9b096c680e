"""TxnOffsetCommit (28), versions 0-5: offsets of a group that count when a transaction commits. [S]

Sent to the group's coordinator, which verifies with the transaction's that the group is part of the transaction.

Versions: 2 adds the leader epoch; 3 the member and its generation (KIP-447); 5 adds the group to the transaction, which
replaces AddOffsetsToTxn (KIP-890).
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import CommitReply, OffsetToCommit
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

_ADDS_FROM = 5


def handle(context: Context, request: Request) -> Maybe[Reply]:
    return _commit(context, request.fields(), adds=request.version >= _ADDS_FROM)


async def _commit(context: Context, fields: dict[str, Any], *, adds: bool) -> Reply:
    topics: list[dict[str, Any]] = fields["topics"]
    offsets = [
        OffsetToCommit(
            TopicPartition(topic["name"], each["partition_index"]),
            each["committed_offset"],
            each.get("committed_leader_epoch", -1),
            each["committed_metadata"] or "",
        )
        for topic in topics
        for each in topic["partitions"]
    ]
    try:
        reply = await context.services.transactions.commit_offsets(
            fields["transactional_id"],
            ProducerIdentity(fields["producer_id"], fields["producer_epoch"]),
            fields["group_id"],
            fields.get("generation_id", -1),
            fields.get("member_id", ""),
            fields.get("group_instance_id") or None,
            offsets,
            adds=adds,
        )
    except RequestError as error:
        reply = CommitReply((error,) * len(offsets))
    return _reply(context, topics, reply)


def _reply(context: Context, topics: list[dict[str, Any]], reply: CommitReply) -> Reply:
    errors = iter(reply.errors)
    answer = []
    for topic in topics:
        partitions = [
            {"partition_index": each["partition_index"], "error_code": groups.code(context, next(errors))}
            for each in topic["partitions"]
        ]
        answer.append({"name": topic["name"], "partitions": partitions})
    return {"topics": answer}
