"""ConsumerGroupHeartbeat (68), versions 0-1: join, stay in and leave a broker-side group (KIP-848). [S]

The assignment is in the response when it has changed, or when the client asks by sending all of its fields.

Versions: 1 adds the regular expression, and the client makes the member id.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_broker.group.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatReply
from ottla_broker.group.consumer.partitions import Partitions
from ottla_broker.requests import Maybe


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    topics, owned = fields["subscribed_topic_names"], fields["topic_partitions"]
    beat = ConsumerHeartbeat(
        fields["group_id"],
        fields["member_id"],
        fields["member_epoch"],
        request.client_id or "",
        groups.client_host(context),
        fields["instance_id"] or None,
        fields["rack_id"],
        fields["rebalance_timeout"],
        None if topics is None else tuple(topics),
        fields.get("subscribed_topic_regex"),
        fields["server_assignor"],
        None if owned is None else _partitions(owned),
    )
    return groups.answered(
        context, lambda: context.services.groups.consumer_heartbeat(beat), _reply, error_fields
    )


def _partitions(topics: list[dict[str, Any]]) -> Partitions:
    found = ((topic["topic_id"], frozenset(topic["partitions"])) for topic in topics)
    return {topic: partitions for topic, partitions in found if partitions}


def _reply(reply: ConsumerHeartbeatReply) -> Reply:
    assignment = reply.assignment
    return error_fields(None) | {
        "member_id": reply.member_id,
        "member_epoch": reply.member_epoch,
        "heartbeat_interval": reply.heartbeat_interval_ms,
        "assignment": None if assignment is None else {"topic_partitions": groups.by_topic_id(assignment)},
    }
