"""`ids/producer-block`: the first producer id that is not allocated; read when needed, not in the image. [P]

{"v":1,"next":1000}
"""

from __future__ import annotations

from ottla_broker.metadata.section import Single
from ottla_broker.metadata.values import decode_fields, decoder, encode_fields, take_int
from ottla_core.ports.store import Entry

#: As many ids as a million broker restarts would take; an id has 63 bits.
PRODUCER_ID_LEAP = 1_000_000_000


def _encode(next_id: int) -> bytes:
    return encode_fields({"next": next_id})


@decoder
def _decode(entry: Entry) -> int:
    return take_int(decode_fields(entry.value), "next")


PRODUCER_BLOCK: Single[int] = Single(
    "ids/producer-block", _encode, _decode, after_loss=lambda next_id: next_id + PRODUCER_ID_LEAP
)
