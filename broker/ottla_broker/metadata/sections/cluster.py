"""`cluster` and `recoveries`: which cluster this is, and how often it lost history for good. [P]

cluster       {"v":1,"id":"Fw0uyH7bTs2QkgMb0fGnWA"}
recoveries    {"v":1,"number":1}
"""

from __future__ import annotations

from ottla_broker.metadata.section import Single
from ottla_broker.metadata.values import decode_fields, decoder, encode_fields, take_int, take_uuid, uuid_text
from ottla_core.ports.store import Entry


def _encode_id(cluster_id: str) -> bytes:
    return encode_fields({"id": cluster_id})


@decoder
def _decode_id(entry: Entry) -> str:
    return uuid_text(take_uuid(decode_fields(entry.value), "id"))


def _encode_number(number: int) -> bytes:
    return encode_fields({"number": number})


@decoder
def _decode_number(entry: Entry) -> int:
    return take_int(decode_fields(entry.value), "number")


CLUSTER: Single[str] = Single("cluster", _encode_id, _decode_id, permanent=True)
RECOVERIES: Single[int] = Single("recoveries", _encode_number, _decode_number, permanent=True)
