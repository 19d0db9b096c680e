"""The header of record batch v2: 61 bytes, read from a buffer without a copy. [P]

The batch on the wire is the batch on disk. Its CRC starts after the leader epoch, so a broker may set base offset
and leader epoch without other changes: `stamp_prefix` builds the 16 bytes that replace the first 16.

Layout (big-endian): base offset 8, length 4 (of what follows it), leader epoch 4, magic 1, crc 4 (of what follows
it), attributes 2, last offset delta 4, base timestamp 8, max timestamp 8, producer id 8, producer epoch 2, base
sequence 4, record count 4, records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from ottla_core.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla_core.ports.disk import Buffer

HEADER_BYTES = 61
#: Base offset and length, which the length field does not count.
LOG_OVERHEAD = 12
#: The first bytes that the CRC does not cover and a broker may set: base offset, length, leader epoch.
PREFIX_BYTES = 16
CRC_START = 21
MAGIC = 2

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_LENGTH_AT = struct.Struct(">i")
#: Sequence numbers wrap after 2^31 - 1, to zero.
_SEQUENCE_MODULUS = 1 << 31


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used

    @property
    def size(self) -> int:
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def has_producer(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCE_MODULUS


def header_at(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at a position, not validated. `struct.error` if fewer than 61 bytes are left."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def whole_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in a buffer that must contain only whole batches.

    Checks sizes and magic, not the CRC: callers use `verify` once per batch.
    """
    position, end = 0, len(buffer)
    while position < end:
        if end - position < HEADER_BYTES:
            raise CorruptMessage(f"{end - position} bytes are too few for a batch header of {HEADER_BYTES}.")
        header = header_at(buffer, position)
        if header.magic != MAGIC:
            raise UnsupportedForMessageFormat(f"Record batches need magic 2, got {header.magic}.")
        if header.length < HEADER_BYTES - LOG_OVERHEAD or position + header.size > end:
            raise CorruptMessage(f"A batch declares {header.length} bytes, which does not fit its request.")
        yield position, header
        position += header.size


def complete_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Like `whole_batches`, for fetched data: a cut-off last batch is ignored."""
    position, end = 0, len(buffer)
    while end - position >= HEADER_BYTES:
        header = header_at(buffer, position)
        if header.magic != MAGIC or header.length < HEADER_BYTES - LOG_OVERHEAD:
            raise CorruptMessage(f"Bytes at {position} of the fetched data are not a record batch v2.")
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def verify(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch's CRC matches."""
    return crc_of(buffer, position, header.size) == header.crc


def crc_of(buffer: Buffer, position: int, size: int) -> int:
    return int(crc32c(memoryview(buffer)[position + CRC_START : position + size]))


def stamp_prefix(base_offset: int, length: int, leader_epoch: int) -> bytes:
    """The 16 bytes with which a leader replaces the producer's."""
    return _PREFIX.pack(base_offset, length, leader_epoch)


def restamp(buffer: bytearray, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch in place, in a buffer that the caller owns."""
    (length,) = _LENGTH_AT.unpack_from(buffer, position + 8)
    _PREFIX.pack_into(buffer, position, base_offset, length, leader_epoch)


def reseal(buffer: bytearray, position: int, size: int) -> None:
    """Recompute the CRC after a change of attributes or timestamps."""
    _CRC.pack_into(buffer, position + CRC_START - 4, crc_of(buffer, position, size))
