"""OffsetCommit (8), versions 2-10: remember how far a group has read. [S]

Answered when the offsets are committed on all in-sync replicas; further commits of the connection need not wait for
that. A refusal of the whole group goes to each partition: there is no other place.

Versions: 2-4 carry a retention time; 6 adds the leader epoch, 7 the group instance id (KIP-345); from 9 on the
generation may be the epoch of a member of a broker-side group (KIP-848); 10 names topics by id.
"""

from __future__ import annotations

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import CommitReply, OffsetToCommit
from ottla_broker.requests import Maybe
from ottla_core.errors import RequestError, UnknownTopicId
from ottla_core.ids import TopicPartition

OVERLAPS = True


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    topics = groups.with_names(context, fields["topics"])
    offsets = _offsets(topics)
    retention_ms = fields.get("retention_time", -1)

    def refuse(error: RequestError) -> Reply:
        return _reply(context, topics, CommitReply((error,) * len(offsets)))

    return groups.answered(
        context,
        lambda: context.services.groups.commit(
            fields["group_id"],
            fields["generation_id_or_member_epoch"],
            fields["member_id"],
            fields.get("group_instance_id") or None,
            offsets,
            retention_ms=None if retention_ms == -1 else retention_ms,
        ),
        lambda reply: _reply(context, topics, reply),
        refuse,
    )


def _offsets(topics: list[groups.NamedTopic]) -> list[OffsetToCommit]:
    return [
        OffsetToCommit(
            TopicPartition(name, each["partition_index"]),
            each["committed_offset"],
            each.get("committed_leader_epoch", -1),
            each["committed_metadata"] or "",
        )
        for name, topic in topics
        if name is not None
        for each in topic["partitions"]
    ]


def _reply(context: Context, topics: list[groups.NamedTopic], reply: CommitReply) -> Reply:
    errors = iter(reply.errors)
    unknown = UnknownTopicId()
    answer = []
    for name, topic in topics:
        partitions = [
            {
                "partition_index": each["partition_index"],
                "error_code": groups.code(context, unknown if name is None else next(errors)),
            }
            for each in topic["partitions"]
        ]
        answer.append(groups.same_topic(topic, partitions))
    return {"topics": answer}
