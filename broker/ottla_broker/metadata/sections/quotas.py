"""`quotas/…`: quotas of users, client ids and addresses. [P]

quotas/user=alice                   {"v":1,"quotas":{"producer_byte_rate":1048576.0}}
quotas/user=alice&client-id=app     quotas/client-id=    (the default of client ids)
quotas/ip=10.0.0.7                  {"v":1,"quotas":{"connection_creation_rate":20.0}}
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

from ottla_broker.metadata.section import Family
from ottla_broker.metadata.values import BadValue, decode_fields, decoder, encode_fields
from ottla_broker.quota import Entity
from ottla_core.ports.store import Entry

_NAMES = ("user", "client-id", "ip")


def _text(entity: Entity) -> str:
    parts = zip(_NAMES, entity, strict=True)
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in parts if value is not None)


def _entity(text: str) -> Entity:
    found = dict(parse_qsl(text, keep_blank_values=True, strict_parsing=True))
    if not found or not found.keys() <= set(_NAMES):
        raise BadValue(f"{text[:80]!r} is no quota entity of this version.")
    return Entity(*(found.get(name) for name in _NAMES))


def _id(text: str) -> Entity:
    try:
        return _entity(text)
    except ValueError as error:
        raise BadValue(str(error)) from None


@decoder
def _decode(entry: Entry) -> Mapping[str, float]:
    found = decode_fields(entry.value)["quotas"]
    return {str(name): float(value) for name, value in found.items()}


QUOTAS: Family[Entity, Mapping[str, float]] = Family(
    "quotas/", _text, _id, lambda quotas: encode_fields({"quotas": dict(quotas)}), _decode
)
