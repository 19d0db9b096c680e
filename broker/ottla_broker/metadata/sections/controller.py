"""`controller`: which broker is the controller; leased, and its create revision is the controller epoch. [P]

{"v":1,"broker":1,"incarnation":…}
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ottla_broker.metadata.section import Single
from ottla_broker.metadata.values import decode_fields, decoder, encode_fields, take_int, take_uuid, uuid_text
from ottla_core.ports.store import Entry


class Elected(NamedTuple):
    broker_id: int
    incarnation: UUID
    #: Create revision: the controller epoch.
    epoch: int = 0


def _encode(elected: Elected) -> bytes:
    return encode_fields({"broker": elected.broker_id, "incarnation": uuid_text(elected.incarnation)})


@decoder
def _decode(entry: Entry) -> Elected:
    fields = decode_fields(entry.value)
    return Elected(take_int(fields, "broker"), take_uuid(fields, "incarnation"), entry.create_revision)


CONTROLLER: Single[Elected] = Single("controller", _encode, _decode)
