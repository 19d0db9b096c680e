"""ListGroups (16), versions 0-5: the groups that this broker coordinates; a client asks all brokers. [S]

Versions: 4 filters by state (KIP-518), 5 by type (KIP-848): classic or consumer.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, Steps
from ottla_broker.group.messages import ListedGroup
from ottla_broker.requests import Maybe
from ottla_broker.steps import begun

OVERLAPS = True
READ_ONLY = True


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_list(context, request.fields()))


def _list(context: Context, fields: dict[str, Any]) -> Steps:
    found = yield from context.services.groups.list_groups(
        list(fields.get("states_filter", ())), list(fields.get("types_filter", ()))
    )
    return {"error_code": 0, "groups": Lazy(_listed, found)}


def _listed(group: ListedGroup) -> dict[str, Any]:
    return {
        "group_id": group.group,
        "protocol_type": group.protocol_type,
        "group_state": group.state.value,
        "group_type": group.type.value,
    }
