"""SyncGroup (14), versions 0-5: the leader brings the assignments of the generation, every member gets its own. [S]

The answers wait for the leader, and then until its assignment is committed.

Versions: 3 adds the group instance id (KIP-345); 5 the protocol type and name (KIP-559), which are checked.
"""

from __future__ import annotations

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import SyncGroup
from ottla_broker.requests import Maybe


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    sync = SyncGroup(
        fields["group_id"],
        fields["generation_id"],
        fields["member_id"],
        fields.get("group_instance_id") or None,
        fields.get("protocol_type"),
        fields.get("protocol_name"),
        {each["member_id"]: each["assignment"] for each in fields["assignments"]},
    )
    return groups.answered(
        context,
        lambda: context.services.groups.sync(sync),
        lambda reply: {
            "error_code": 0,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol,
            "assignment": reply.assignment,
        },
        lambda error: {"error_code": error.code},
    )
