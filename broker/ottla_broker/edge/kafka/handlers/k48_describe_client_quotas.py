"""DescribeClientQuotas (48), versions 0-1: quotas of users, client ids and addresses. Used by
`kafka-configs --describe`. [S]

Versions: 1 is flexible.
"""

from __future__ import annotations

from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_broker.quota import DEFAULT, Entity
from ottla_broker.service.quotas import NameFilter
from ottla_core.errors import InvalidRequest, RequestError

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_TYPES = ("user", "client-id", "ip")


def handle(context: Context, request: Request) -> Reply:
    fields = request.fields()
    try:
        wanted = {each["entity_type"]: _filter(each) for each in fields["components"]}
        if not wanted.keys() <= set(_TYPES) or len(wanted) < len(fields["components"]):
            raise InvalidRequest("A filter names user, client-id or ip, each at most once.")
        if "ip" in wanted and len(wanted) > 1:
            raise InvalidRequest("An ip has quotas of its own: a filter for it names nothing else.")
        found = context.services.quotas.describe(
            wanted.get("user"), wanted.get("client-id"), wanted.get("ip"), strict=fields["strict"]
        )
    except RequestError as error:
        context.failed(error)
        return error_fields(error) | {"entries": None}
    return error_fields(None) | {
        "entries": [
            {
                "entity": named(entity),
                "values": [{"key": name, "value": value} for name, value in quotas.items()],
            }
            for entity, quotas in found
        ]
    }


def _filter(component: dict[str, Any]) -> NameFilter:
    kind, name = component["match_type"], component["match"]
    if kind == _EXACT and name:
        return NameFilter(name)
    if kind == _DEFAULT:
        return NameFilter(DEFAULT)
    if kind == _ANY:
        return NameFilter(None)
    raise InvalidRequest("A filter matches a name (0), the default (1), or any (2).")


def named(entity: Entity) -> list[dict[str, Any]]:
    """Null is the default."""
    return [
        {"entity_type": kind, "entity_name": name or None}
        for kind, name in zip(_TYPES, entity, strict=True)
        if name is not None
    ]
