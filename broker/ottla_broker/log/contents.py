"""Decodes the records of a batch where the log needs it: timestamps, keys, another compression. [P]

Whatever a producer sent, memory stays bounded: a batch may inflate to `INFLATED_BYTES_MAX`, and one whose records
would make too many objects is refused before it is opened.
"""

from __future__ import annotations

import struct

from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import MessageTooLarge
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD,
    BatchHeader,
    reseal,
)
from ottla_core.records.codec import Record, records_of
from ottla_core.records.compression import Compression, compress, decompress_framed

#: Sixteen times the default max.message.bytes. Producers bound a batch before compressing it, to far less.
INFLATED_BYTES_MAX = 16 << 20
#: Some 300 bytes of objects each: 75 MB while a batch is decoded.
RECORDS_MAX = 250_000

_LENGTH_AT, _ATTRIBUTES_AT = 8, 21
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


def records(batch: Buffer, header: BatchHeader) -> list[Record]:
    if header.count > RECORDS_MAX:
        raise MessageTooLarge(
            f"A batch of {header.count} records is too large to decode; the limit is {RECORDS_MAX}."
        )
    return records_of(batch, 0, header, limit_bytes=INFLATED_BYTES_MAX)


def timestamps(batch: Buffer, header: BatchHeader) -> list[tuple[int, int]]:
    """Offset and timestamp of each record."""
    if header.is_log_append_time:
        return [(record.offset, header.max_timestamp) for record in records(batch, header)]
    return [(record.offset, record.timestamp_ms) for record in records(batch, header)]


def wanted_codec(config: TopicConfig) -> Compression:
    name = config.compression_type
    return Compression.NONE if name == "uncompressed" else Compression.named(name)


def recompressed(batch: Buffer, header: BatchHeader, config: TopicConfig) -> bytearray:
    """The same records in the topic's compression; the records themselves are not decoded."""
    codec = wanted_codec(config)
    view = memoryview(batch)
    inflated, size = decompress_framed(header.compression, view[HEADER_BYTES:], INFLATED_BYTES_MAX)
    level = {
        Compression.GZIP: config.compression_gzip_level if config.compression_gzip_level > 0 else None,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }.get(codec)
    made = bytearray(view[:HEADER_BYTES])
    made += compress(codec, memoryview(inflated)[:size], level)
    _INT.pack_into(made, _LENGTH_AT, len(made) - LOG_OVERHEAD)
    _SHORT.pack_into(made, _ATTRIBUTES_AT, header.attributes & ~COMPRESSION_MASK | codec)
    reseal(made, 0, len(made))
    return made
