"""LeaveGroup (13), versions 0-5: members leave, and the others share their partitions. [S]

Versions: 3 takes several members, also by their group instance id alone (KIP-345), and has an error for each of them;
5 a reason (KIP-800), which is not kept.
"""

from __future__ import annotations

from ottla_broker.edge.kafka import groups
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.group.messages import LeaveGroup, LeaveReply, Leaving
from ottla_broker.requests import Maybe

_SEVERAL_FROM = 3


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    if request.version < _SEVERAL_FROM:
        leaving = [Leaving(fields["member_id"], None)]
    else:
        leaving = [Leaving(m["member_id"], m["group_instance_id"] or None) for m in fields["members"]]

    def shape(reply: LeaveReply) -> Reply:
        if request.version < _SEVERAL_FROM:
            return {"error_code": groups.code(context, reply.members[0].error)}
        members = [
            {
                "member_id": left.member_id,
                "group_instance_id": left.instance_id,
                "error_code": groups.code(context, left.error),
            }
            for left in reply.members
        ]
        return {"error_code": 0, "members": members}

    return groups.answered(
        context,
        lambda: context.services.groups.leave(LeaveGroup(fields["group_id"], tuple(leaving))),
        shape,
        lambda error: {"error_code": error.code},
    )
