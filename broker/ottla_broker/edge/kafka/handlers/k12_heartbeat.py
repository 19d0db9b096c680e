"""Heartbeat (12), versions 0-4: the member is alive; the response says whether it has to join again. [S]

Versions: 3 adds the group instance id (KIP-345).
"""

from __future__ import annotations

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import Heartbeat
from ottla_broker.requests import Maybe


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    beat = Heartbeat(
        fields["group_id"],
        fields["generation_id"],
        fields["member_id"],
        fields.get("group_instance_id") or None,
    )
    return groups.answered(
        context,
        lambda: context.services.groups.heartbeat(beat),
        lambda reply: {"error_code": 0},
        lambda error: {"error_code": error.code},
    )
