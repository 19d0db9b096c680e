"""`removals`: the last dead broker that another one removed; each removal compares the revision (rule 15). [P]

{"v":1,"broker":2,"by":1}
"""

from __future__ import annotations

from typing import NamedTuple

from ottla_broker.metadata.section import Single
from ottla_broker.metadata.values import encode_fields
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import Entry


class Removal(NamedTuple):
    broker_id: int
    by: int
    #: Mod revision.
    revision: int = 0


def _encode(removal: Removal) -> bytes:
    return encode_fields({"broker": removal.broker_id, "by": removal.by})


def _decode(entry: Entry) -> Removal:
    """Only the revision counts, whatever the value is: that is for people."""
    return Removal(NO_BROKER, NO_BROKER, entry.mod_revision)


REMOVALS: Single[Removal] = Single("removals", _encode, _decode)
