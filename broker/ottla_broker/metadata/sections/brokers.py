"""`brokers/<id>`: online brokers; the keys are leased. [P]

{"v":1,"incarnation":…,"endpoints":[…],"rack":…,"directories":[…],"torn":[…]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
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
    uuid_from_text,
    uuid_text,
)
from ottla_core.ports.store import Entry


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One advertised address. `listener` names it; Metadata answers with the listener it was asked on."""

    listener: str
    protocol: str  # "kafka", "grpc" or "internal"
    host: str
    port: int
    #: Of the internal listener, so that other brokers know how to connect.
    security: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerImage:
    id: int
    incarnation: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    #: Create revision of `brokers/<id>`: names this registration.
    revision: int = 0
    #: Ids of its log directories, and those of them whose logs may lack their tail (design rule 2).
    directories: tuple[UUID, ...] = ()
    torn: tuple[UUID, ...] = ()
    #: Fields of a newer version, kept so that rewriting the value does not lose them.
    extra: Extra = ()
    #: It is about to stop: it gets no new work, and its leaderships move to other brokers.
    stopping: bool = False
    #: Partitions that it cannot serve because their log directory has failed: numbers by topic id. For these it is
    #: treated as offline, whatever else it serves.
    offline: Mapping[UUID, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    #: Mod revision: changes with every announcement of the same registration.
    mod_revision: int = 0

    def has_lost(self, topic_id: UUID, partition: int) -> bool:
        """Whether its log directory with this partition has failed."""
        return partition in self.offline.get(topic_id, ())

    def endpoint(self, protocol: str, listener: str | None = None) -> Endpoint | None:
        """The address for a protocol on one listener, None if it has none of that name; without a name the main one.

        Another listener may speak another security protocol: a client of a TLS listener must not be sent to a plaintext
        one, not even while brokers get their TLS listeners one by one.
        """
        matching = (e for e in self.endpoints if e.protocol == protocol)
        return next((e for e in matching if listener in (None, e.listener)), None)


def _encode(image: BrokerImage) -> bytes:
    fields: dict[str, object] = {
        "incarnation": uuid_text(image.incarnation),
        "endpoints": [
            {"listener": e.listener, "protocol": e.protocol, "host": e.host, "port": e.port}
            | ({"security": e.security} if e.security != "PLAINTEXT" else {})
            for e in image.endpoints
        ],
        "rack": image.rack,
        "directories": id_texts(image.directories),
        "torn": id_texts(image.torn),
    }
    if image.stopping:
        fields["stopping"] = True
    if image.offline:
        fields["offline"] = {uuid_text(topic_id): list(lost) for topic_id, lost in image.offline.items()}
    return encode_fields(fields, image.extra)


@decoder
def _decode(entry: Entry) -> BrokerImage:
    fields = decode_fields(entry.value)
    stopping = fields.pop("stopping", False) is True
    offline = {
        uuid_from_text(topic_id): tuple(int(n) for n in lost)
        for topic_id, lost in fields.pop("offline", {}).items()
    }
    return BrokerImage(
        BROKERS.id_of(entry.key),
        take_uuid(fields, "incarnation"),
        tuple(
            Endpoint(
                str(e["listener"]),
                str(e["protocol"]),
                str(e["host"]),
                int(e["port"]),
                str(e.get("security", "PLAINTEXT")),
            )
            for e in fields.pop("endpoints", ())
        ),
        fields.pop("rack", None),
        entry.create_revision,
        take_uuids(fields, "directories"),
        take_uuids(fields, "torn"),
        tuple(fields.items()),
        stopping,
        offline,
        entry.mod_revision,
    )


BROKERS: Family[int, BrokerImage] = Family("brokers/", str, number_from_text, _encode, _decode)
