"""Requests of the flood clients, encoded once and sent over and over. [A]

One request of each kind that a merely busy client sends: one-byte records to one partition after the other, ListOffsets
and Fetch over all partitions that a broker leads, and Metadata for all topics. The versions are ones that Apache Kafka
4.3 and Ottla both serve, so that both sides get the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla_broker.edge.kafka import schema
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.versions import APIS
from ottla_core.records.codec import Record, build_batch

#: Names of the floods, in the order in which they join in.
FLOODS = ("produce", "list_offsets", "fetch", "metadata")

_CLIENT_ID = b"flood"
_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA = 0, 1, 2, 3
_FETCH_BYTES = 1 << 20
_EARLIEST = -2


def frame(key: int, version: int, fields: Mapping[str, Any], correlation_id: int = 1) -> bytes:
    """A whole request with its length. Fields that are left out have the schema's default."""
    api = APIS[key]
    out = bytearray(struct.pack(">hhih", key, version, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID)
    if version >= api.flexible_from:
        out.append(0)
    compile_writer(schema.load(api, version, "request"))(out, fields)
    return struct.pack(">i", len(out)) + bytes(out)


def produce(topic: str, partition: int, records: bytes, acks: int = 1) -> bytes:
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    return frame(_PRODUCE, 9, {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": data})


def fetch(
    topic: str,
    partitions: Sequence[int],
    partition_bytes: int = _FETCH_BYTES,
    offset: int = 0,
    *,
    wait_ms: int = 0,
    min_bytes: int = 0,
) -> bytes:
    """Without a session. By default it is answered at once, else when `min_bytes` can be read."""
    asked = [
        {
            "partition": number,
            "fetch_offset": offset,
            "partition_max_bytes": partition_bytes,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
        }
        for number in partitions
    ]
    fields = {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max(partition_bytes, min_bytes, _FETCH_BYTES),
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": asked}],
        "rack_id": "",
    }
    return frame(_FETCH, 12, fields)


def list_offsets(topic: str, partitions: Sequence[int]) -> bytes:
    asked = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": _EARLIEST}
        for number in partitions
    ]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": asked}]}
    return frame(_LIST_OFFSETS, 7, fields)


def metadata() -> bytes:
    return frame(_METADATA, 9, {"topics": None, "allow_auto_topic_creation": False})


def requests(kind: str, topic: str, partitions: Sequence[int]) -> list[bytes]:
    """What one connection to the leader of these partitions sends, round and round."""
    one = bytes(build_batch([Record(0, 0, None, b"x", [])]))
    made: dict[str, Callable[[], list[bytes]]] = {
        "produce": lambda: [produce(topic, number, one) for number in partitions],
        "list_offsets": lambda: [list_offsets(topic, partitions)],
        "fetch": lambda: [fetch(topic, partitions)],
        "metadata": lambda: [metadata()],
    }
    return made[kind]()


#: Requests that a connection has under way. A small produce request is ten thousand times cheaper than the others.
WINDOWS = {"produce": 2000, "list_offsets": 64, "fetch": 64, "metadata": 64}
