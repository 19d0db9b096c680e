"""`topics/<name>`: id, number of partitions and settings of each topic; its partitions have their own keys. [P]

{"v":1,"id":…,"partitions":3,"config":{…}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ottla_broker.metadata.section import Family
from ottla_broker.metadata.sections.partitions import PartitionImage
from ottla_broker.metadata.values import (
    BadValue,
    Extra,
    decode_fields,
    decoder,
    encode_fields,
    take_int,
    take_texts,
    take_uuid,
    uuid_text,
)
from ottla_core.ports.store import Entry

#: Topics that belong to the cluster itself: never auto-created by a client, never grown.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
#: Far above what one cluster serves; a typing error in etcdctl must not make every broker allocate gigabytes.
PARTITIONS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic with its partitions: what the image joins from two sections."""

    name: str
    id: UUID
    #: Only what was set for this topic; defaults come from the broker and from Kafka.
    config: Mapping[str, str]
    partitions: tuple[PartitionImage, ...]
    #: Mod revision of `topics/<name>`.
    revision: int = 0
    extra: Extra = ()

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class StoredTopic(NamedTuple):
    """The value of `topics/<name>`."""

    id: UUID
    partitions: int
    config: Mapping[str, str]
    extra: Extra = ()
    revision: int = 0


def _encode(topic: StoredTopic) -> bytes:
    return encode_fields(
        {"id": uuid_text(topic.id), "partitions": topic.partitions, "config": dict(topic.config)}, topic.extra
    )


@decoder
def _decode(entry: Entry) -> StoredTopic:
    fields = decode_fields(entry.value)
    topic_id, count = take_uuid(fields, "id"), take_int(fields, "partitions")
    config = take_texts(fields, "config")
    if not 1 <= count <= PARTITIONS_MAX:
        raise BadValue(f'"partitions" is {count}, not between 1 and {PARTITIONS_MAX}')
    return StoredTopic(topic_id, count, config, tuple(fields.items()), entry.mod_revision)


TOPICS: Family[str, StoredTopic] = Family("topics/", str, str, _encode, _decode)
