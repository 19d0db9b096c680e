"""Records <-> batches, over aiokafka's compiled codec. [P]

The only module that uses that codec: clients build and read batches here; in the broker only code that needs single
records does (compaction, keys of compacted topics, a dump). It requires the compiled extension and fails to load
without it: plain Python is 15 to 90 times slower, and such a slowdown would be noticed late.

The compiled reader is fast but trusts its input. Checks around it, so that any bytes give records or an error:

* C1: it never sees a batch of fewer than 61 bytes, of no records, or of more records than its bytes can hold.
* C2: it never decompresses: it gets an uncompressed batch that we built, within the caller's limit.
* C3: if the last numbers are wrong, it reads a few bytes past the end: `_SLACK_BYTES` of padding always follow.
* C4: every exception of it (also MemoryError and SystemError) becomes `CorruptMessage`.
* C5: offsets rise within the batch's range; otherwise a producer could make readers go backwards.

The compiled writer uses -1 as "no timestamp yet", which conflicts with records that have timestamp -1. `BatchBuilder`
refuses times before 1970 as Java does; `rebuild_batch`, which must keep timestamps, starts with another time.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from ottla_core.errors import CorruptMessage, RequestError
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    header_at,
    reseal,
)
from ottla_core.records.compression import Compression, compress, decompress_framed
from ottla_core.records.lenient import read_leniently

try:
    from aiokafka.record._crecords import DefaultRecordBatch, DefaultRecordBatchBuilder
except ImportError as error:  # pragma: no cover - a broken installation
    raise ImportError(
        "Ottla needs aiokafka's compiled record codec; this aiokafka was built without it. "
        "Install a wheel, or build it with a C compiler and without AIOKAFKA_NO_EXTENSIONS."
    ) from error

Header: TypeAlias = tuple[str, bytes | None]
#: What a caller makes of a record.
T = TypeVar("T")

#: A record is at least its length, attributes, two deltas, two sizes and a count, one byte each.
RECORD_BYTES_MIN = 7
#: Two numbers of up to ten bytes: what the compiled reader may read past the end before it notices.
_SLACK_BYTES = 32
_NO_LIMIT_BYTES = (1 << 31) - 1
_HEADER = struct.Struct(">qiibIhiqqqhii")
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_POSITION = 21
_NOT_RISING = "The offsets of the records in a batch do not rise within its range."


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


_fields_of = operator.attrgetter("offset", "timestamp", "key", "value", "headers")
#: Like `Record._make`, without a Python frame per record.
_record_from: Callable[[tuple[object, ...]], Record] = partial(tuple.__new__, Record)
_offset_of = operator.itemgetter(0)


# --- reading ---


def records_of(buffer: Buffer, position: int, header: BatchHeader, *, limit_bytes: int) -> list[Record]:
    """All records of the batch at `position` with this header. Does not check the CRC.

    `limit_bytes` bounds the uncompressed records; for many tiny records, the Python objects take up to some forty
    times that. CorruptMessage, MessageTooLarge or UnsupportedCompressionType if they cannot be read.
    """
    batch = _checked_batch(buffer, position, header, limit_bytes)
    if batch is None:
        return []
    records = _read(batch, header)
    offsets = list(map(_offset_of, records))
    rising = all(map(operator.lt, offsets, offsets[1:]))
    if not rising or offsets[0] < header.base_offset or offsets[-1] > header.last_offset:
        raise CorruptMessage(_NOT_RISING)
    return records


def rows_of(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    make: Callable[[tuple[object, ...]], T],
    *,
    topic: str,
    partition: int,
    limit_bytes: int,
) -> list[T]:
    """What `make` makes of each record's topic, partition, offset, timestamp, key, value, headers and timestamp type.

    Like `records_of`, for consumers: one object per record survives, and records without headers share an empty tuple.
    The visits of the garbage collector to more objects cost as much again as the decoding.
    """
    batch = _checked_batch(buffer, position, header, limit_bytes)
    if batch is None:
        return []
    kind = 1 if header.is_log_append_time else 0
    made: list[T] = []
    last = header.base_offset - 1
    try:
        for each in DefaultRecordBatch(batch):
            offset = each.offset
            if offset <= last:
                raise CorruptMessage(_NOT_RISING)
            last = offset
            made.append(
                make(
                    (topic, partition, offset, each.timestamp, each.key, each.value, each.headers or (), kind)
                )
            )
    except UnicodeDecodeError:
        return [make((topic, partition, *record, kind)) for record in _read(batch, header)]
    except RequestError:
        raise
    except Exception as error:
        raise CorruptMessage(f"The records of a batch are not valid: {error}.") from None
    if last > header.last_offset:
        raise CorruptMessage(_NOT_RISING)
    return made


def _checked_batch(buffer: Buffer, position: int, header: BatchHeader, limit_bytes: int) -> memoryview | None:
    """The uncompressed batch, after the checks that need no record (C1); None if it has no records."""
    size = header.size
    if size < HEADER_BYTES or position < 0 or position + size > len(buffer):
        raise CorruptMessage(f"A batch declares {size} bytes, but the data ends earlier.")
    if header.magic != MAGIC:
        raise CorruptMessage(f"Record batches need magic 2, got {header.magic}.")
    if header.count == 0:
        # Compaction leaves bare headers. The compiled reader aborts on them.
        if size != HEADER_BYTES:
            raise CorruptMessage(f"A batch without records has {size - HEADER_BYTES} bytes after its header.")
        return None
    batch = _plain_batch(buffer, position, header, limit_bytes)
    room = len(batch) - HEADER_BYTES
    if not 0 < header.count <= room // RECORD_BYTES_MIN:
        raise CorruptMessage(f"A batch declares {header.count} records in {room} bytes.")
    return batch


def _plain_batch(buffer: Buffer, position: int, header: BatchHeader, limit_bytes: int) -> memoryview:
    """The uncompressed batch, followed by padding (C3)."""
    end = position + header.size
    codec = header.compression
    whole = memoryview(buffer)
    if codec == Compression.NONE and end + _SLACK_BYTES <= len(buffer):
        return whole[position:end]
    made, size = decompress_framed(
        codec,
        whole[position + HEADER_BYTES : end],
        limit_bytes,
        lead_bytes=HEADER_BYTES,
        trail_bytes=_SLACK_BYTES,
    )
    made[:HEADER_BYTES] = whole[position : position + HEADER_BYTES]
    _ATTRIBUTES.pack_into(made, _ATTRIBUTES_POSITION, header.attributes & ~COMPRESSION_MASK)
    return memoryview(made)[: HEADER_BYTES + size]


def _read(batch: memoryview, header: BatchHeader) -> list[Record]:
    try:
        return list(map(_record_from, map(_fields_of, DefaultRecordBatch(batch))))
    except UnicodeDecodeError:
        # Header names should be UTF-8, but other producers may write any bytes; see `lenient`.
        return [Record._make(fields) for fields in read_leniently(batch[HEADER_BYTES:], header)]
    except RequestError:
        raise
    except Exception as error:
        raise CorruptMessage(f"The records of a batch are not valid: {error}.") from None


# --- writing ---


class BatchBuilder:
    """Builds one batch, record by record.

    `size_bytes` is the size before compression. The first record always fits, however large: the caller checks
    whether a batch of that size is acceptable.
    """

    __slots__ = ("_builder", "_built", "_compression", "_level", "count")

    def __init__(
        self, limit_bytes: int, *, compression: int = Compression.NONE, level: int | None = None
    ) -> None:
        # aiokafka's limit is exclusive.
        self._builder = DefaultRecordBatchBuilder(MAGIC, Compression.NONE, 0, -1, -1, -1, limit_bytes + 1)
        self._compression = compression
        self._level = level
        self._built = False
        self.count = 0

    @property
    def size_bytes(self) -> int:
        return int(self._builder.size())

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header] = (),
    ) -> bool:
        """Append a record; False if there is no room. TypeError or ValueError (batch unchanged) if it is not valid."""
        if timestamp_ms < 0:
            raise ValueError(f"A timestamp of {timestamp_ms} is before 1970.")
        if self._built:
            raise ValueError("The batch is built already.")
        names = headers if type(headers) is list else list(headers)
        if self._builder.append(self.count, timestamp_ms, key, value, names) is None:
            return False
        self.count += 1
        return True

    def build(
        self,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        base_offset: int = 0,
    ) -> bytearray:
        """The finished batch. Called once; no record can be appended afterwards."""
        if self._built or not self.count:
            raise ValueError("Nothing was appended." if not self.count else "The batch is built already.")
        self._built = True
        made = self._builder.build()
        header = header_at(made)
        attributes = self._compression
        attributes |= TRANSACTIONAL_FLAG if transactional else 0
        attributes |= CONTROL_FLAG if control else 0
        return seal(
            made,
            header._replace(
                base_offset=base_offset,
                attributes=attributes,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            ),
            self._level,
        )


def build_batch(
    records: Iterable[Record],
    *,
    compression: int = Compression.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    base_offset: int = 0,
) -> bytearray:
    """One batch of these records, with consecutive offsets from `base_offset` instead of their own."""
    builder = BatchBuilder(_NO_LIMIT_BYTES, compression=compression, level=level)
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value, record.headers)
    return builder.build(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        base_offset=base_offset,
    )


def rebuild_batch(
    header: BatchHeader,
    kept: Sequence[Record],
    *,
    delete_horizon_ms: int | None = None,
    level: int | None = None,
) -> bytearray:
    """The batch of this header with only these of its records, for compaction.

    Offsets, timestamps, producer, flags, leader epoch, last offset and compression type stay, so that fetches and
    sequence checks see the same range. `delete_horizon_ms` is when its tombstones or markers may be
    removed (KIP-534: stored as the base timestamp); None keeps an existing one. Without records
    the result is a bare header, which Kafka keeps to remember a producer's last sequence.
    """
    if not kept:
        return empty_batch(header)
    if delete_horizon_ms is not None:
        header = header._replace(
            attributes=header.attributes | DELETE_HORIZON_FLAG, base_timestamp=delete_horizon_ms
        )
    base = header.base_timestamp
    if base == -1 and not header.attributes & DELETE_HORIZON_FLAG:
        base = 0  # aiokafka's mark for none; deltas may start anywhere
    builder = DefaultRecordBatchBuilder(MAGIC, Compression.NONE, 0, -1, -1, -1, _NO_LIMIT_BYTES)
    # This first record sets the base timestamp, and is cut off again.
    builder.append(0, base, None, None, [])
    start = builder.size()
    for record in kept:
        builder.append(
            record.offset - header.base_offset,
            record.timestamp_ms,
            record.key,
            record.value,
            record.headers,
        )
    made = builder.build()
    del made[HEADER_BYTES:start]
    newest = max(record.timestamp_ms for record in kept)
    return seal(
        made,
        header._replace(
            base_timestamp=base,
            max_timestamp=header.max_timestamp if header.is_log_append_time else newest,
            count=len(kept),
        ),
        level,
    )


def empty_batch(header: BatchHeader) -> bytearray:
    """A batch of this header without records, as Kafka writes it: uncompressed, both timestamps the newest one."""
    return seal(
        bytearray(HEADER_BYTES),
        header._replace(
            attributes=header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_FLAG),
            base_timestamp=header.max_timestamp,
            count=0,
        ),
        None,
    )


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """When the batch's tombstones or markers may be removed; None if it is not set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None


def seal(made: bytearray, header: BatchHeader, level: int | None) -> bytearray:
    """Compress the records as the header's attributes say, write the header, compute the CRC.

    `made` is the batch: space for the header, then the uncompressed records.
    """
    codec = header.compression
    if codec != Compression.NONE and header.count:
        with memoryview(made) as whole, whole[HEADER_BYTES:] as records:
            packed = compress(codec, records, level)
        made = bytearray(HEADER_BYTES) + packed
    size = len(made)
    _HEADER.pack_into(made, 0, *header._replace(length=size - LOG_OVERHEAD, magic=MAGIC, crc=0))
    reseal(made, 0, size)
    return made
