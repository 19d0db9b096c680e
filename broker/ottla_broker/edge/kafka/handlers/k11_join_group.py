"""JoinGroup (11), versions 0-9: become a member of a group, or take part in its next generation. [S]

The answer waits until the generation begins: for the other members, at most the rebalance timeout. The leader, one of
them, gets all members and assigns.

Versions: 1 adds a rebalance timeout apart from the session's; 4 assigns a member id first (KIP-394); 5 the group
instance id (KIP-345); 7 the protocol type in the answer; 8 a reason (KIP-800), which is not kept; 9 lets a static
leader that came back skip the assignment (KIP-814).
"""

from __future__ import annotations

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import JoinReply, Protocol
from ottla_broker.requests import Maybe
from ottla_core.errors import RequestError

_ID_FIRST_FROM = 4
_NULLABLE_PROTOCOL_FROM = 7
_SKIP_FROM = 9


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields, version = request.fields(), request.version
    member_id, session_ms = fields["member_id"], fields["session_timeout"]
    no_protocol = None if version >= _NULLABLE_PROTOCOL_FROM else ""

    def shape(reply: JoinReply) -> Reply:
        return {
            "error_code": groups.code(context, reply.error),
            "generation_id": reply.generation,
            "protocol_type": reply.protocol_type,
            "protocol_name": no_protocol if reply.protocol is None else reply.protocol,
            "leader": reply.leader_id,
            "skip_assignment": reply.skip_assignment,
            "member_id": reply.member_id,
            "members": [
                {"member_id": m.member_id, "group_instance_id": m.instance_id, "metadata": m.metadata}
                for m in reply.members
            ],
        }

    def refuse(error: RequestError) -> Reply:
        return {"error_code": error.code, "member_id": member_id, "protocol_name": no_protocol}

    return groups.answered(
        context,
        lambda: context.services.groups.join(
            fields["group_id"],
            member_id,
            instance_id=fields.get("group_instance_id") or None,
            client_id=request.client_id or "",
            client_host=groups.client_host(context),
            protocol_type=fields["protocol_type"],
            protocols=[Protocol(each["name"], each["metadata"]) for each in fields["protocols"]],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=fields.get("rebalance_timeout", session_ms),
            requires_known_id=version >= _ID_FIRST_FROM,
            can_skip_assignment=version >= _SKIP_FROM,
        ),
        shape,
        refuse,
    )
