"""ListGroups (16), versions 0-5: the groups that this broker coordinates; a client asks all brokers. [S]

Versions: 4 filters by state (KIP-518), 5 by type (KIP-848): classic or consumer.
"""

from __future__ import annotations

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import Maybe

OVERLAPS = True
READ_ONLY = True


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    return _list(context, list(fields.get("states_filter", ())), list(fields.get("types_filter", ())))


async def _list(context: Context, states: list[str], types: list[str]) -> Reply:
    return {
        "error_code": 0,
        "groups": [
            {
                "group_id": each.group,
                "protocol_type": each.protocol_type,
                "group_state": each.state.value,
                "group_type": each.type.value,
            }
            for each in await context.services.groups.list_groups(states, types)
        ],
    }
