"""`members/<id>`: the cluster's record of every broker, online or not; no lease. [P]

{"v":1,"incarnation":…,"directories":[…],"rack":…}
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ottla_broker.metadata.section import Family
from ottla_broker.metadata.values import (
    Extra,
    decode_fields,
    decoder,
    encode_fields,
    id_texts,
    number_from_text,
    take_uuid,
    take_uuids,
    uuid_text,
)
from ottla_core.ports.store import Entry


@dataclass(frozen=True, slots=True)
class MemberImage:
    """The cluster's record of a broker, online or not: `members/<id>` has no lease."""

    id: int
    #: The last incarnation that the controller admitted.
    incarnation: UUID
    directories: tuple[UUID, ...] = ()
    #: Mod revision: compared by writers that elect this broker or add it to an ISR.
    revision: int = 0
    extra: Extra = ()
    #: As of that incarnation, so that the rack of an offline broker is known. Earlier versions did not write it.
    rack: str | None = None


def _encode(image: MemberImage) -> bytes:
    fields: dict[str, object] = {
        "incarnation": uuid_text(image.incarnation),
        "directories": id_texts(image.directories),
    }
    if image.rack is not None:
        fields["rack"] = image.rack
    return encode_fields(fields, image.extra)


@decoder
def _decode(entry: Entry) -> MemberImage:
    fields = decode_fields(entry.value)
    rack = fields.pop("rack", None)
    return MemberImage(
        MEMBERS.id_of(entry.key),
        take_uuid(fields, "incarnation"),
        take_uuids(fields, "directories"),
        entry.mod_revision,
        tuple(fields.items()),
        rack if isinstance(rack, str) else None,
    )


MEMBERS: Family[int, MemberImage] = Family("members/", str, number_from_text, _encode, _decode)
