"""Converts record batches from a broker into Arrow columns. [P]

No object per record: one compiled loop walks through the lengths (`records.walk`), because each record says where the
next begins, and everything else (offsets, times, positions of keys and values) is computed for all records of a fetch
at once. Keys and values are then copied once, from the buffer into their column.

Batches that are not as a producer would write them go to `records.codec` instead, one by one. It reads all that can be
read and has an error message for the rest. So this module may give up at any doubt, and must never trust a length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ottla_core.errors import CorruptMessage
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import HEADER_BYTES, BatchHeader, verify
from ottla_core.records.codec import Record, records_of
from ottla_core.records.compression import Compression, decompress_framed
from ottla_core.records.walk import record_starts

#: Maximum decompressed size of one batch; as in the consumer.
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
#: Uncompressed bytes after which a column is split. Offsets inside a column are 32-bit, and Spark holds a whole column.
_GROUP_BYTES = 16 * 1024 * 1024
#: Rows after which a column is split: Spark holds a whole Arrow batch, and tiny records would make it long.
_ROWS_MAX = 100_000
#: Headers of a record; with more, records are read one by one.
_HEADERS_MAX = 1000
#: Seven bits per byte: more bytes do not fit into 64 bits.
_VARINT_BYTES_MAX = 10

Numbers = NDArray[np.int64]

_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
_SCHEMA_WITH_HEADERS = _SCHEMA.append(pa.field("headers", _HEADERS))


def arrow_schema(*, with_headers: bool) -> Any:
    return _SCHEMA_WITH_HEADERS if with_headers else _SCHEMA


class _Doubt(Exception):
    """These bytes are not what a producer writes; fall back to `records.codec`."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """One batch whose uncompressed records are in `data[at:end]`."""

    header: BatchHeader
    source: Buffer
    source_at: int
    data: Buffer
    at: int
    end: int


def arrow_batches(
    data: Buffer,
    batches: Sequence[tuple[int, BatchHeader]],
    tp: TopicPartition,
    first: int,
    end: int,
    *,
    with_headers: bool,
) -> Iterator[Any]:
    """Arrow record batches of the records with `first <= offset < end`.

    `batches` are the ones to read, by position in `data`. Raises CorruptMessage if a CRC is wrong.
    """
    for group in _groups(data, batches, tp):
        try:
            made = _columns(group, tp, first, end, with_headers)
        except (_Doubt, IndexError):
            made = _carefully(group, tp, first, end, with_headers)
        for start in range(0, made.num_rows, _ROWS_MAX):
            yield made.slice(start, _ROWS_MAX)


def _groups(
    data: Buffer, batches: Sequence[tuple[int, BatchHeader]], tp: TopicPartition
) -> Iterator[list[_Piece]]:
    """Batches to convert together: a bounded number, all in one buffer."""
    group: list[_Piece] = []
    size = 0
    for at, header in batches:
        if not verify(data, at, header):
            raise CorruptMessage(f"The batch at offset {header.base_offset} of {tp} fails its CRC.")
        if header.compression == Compression.NONE:
            piece = _Piece(header, data, at, data, at + HEADER_BYTES, at + header.size)
        else:
            packed = memoryview(data)[at + HEADER_BYTES : at + header.size]
            plain, plain_size = decompress_framed(header.compression, packed, DECOMPRESSED_BYTES_MAX)
            piece = _Piece(header, data, at, plain, 0, plain_size)
        if group and size + piece.end - piece.at > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.end - piece.at
    if group:
        yield group


# --- fast path ---


def _columns(group: list[_Piece], tp: TopicPartition, first: int, end: int, with_headers: bool) -> Any:
    data, group_in_one = _joined(group)
    data = data if isinstance(data, bytes) else bytes(data)  # which the compiled walk reads fastest
    starts: list[int] = []
    counts: list[int] = []
    for piece, begin, until in group_in_one:
        before = len(starts)
        if not record_starts(data, begin, until, starts):
            raise _Doubt
        counts.append(len(starts) - before)
        if counts[-1] != piece.header.count:
            raise _Doubt
    octets = np.frombuffer(data, np.uint8)
    at_record = np.array(starts, np.int64)
    size, at = _varints(octets, at_record)
    record_end = at + size
    times, at = _varints(octets, at + 1)  # after a byte of attributes, which is unused
    deltas, at = _varints(octets, at)
    key_size, key_at = _varints(octets, at)
    _check(size > 0, key_size >= -1, key_size <= size)
    key_end = key_at + np.maximum(key_size, 0)
    value_size, value_at = _varints(octets, key_end)
    _check(value_size >= -1, value_size <= size)
    value_end = value_at + np.maximum(value_size, 0)
    header_count, at = _varints(octets, value_end)
    _check(header_count >= 0, at <= record_end, (at == record_end) | (header_count > 0))

    headers = [piece.header for piece in group]
    offsets = deltas + _spread([header.base_offset for header in headers], counts)
    _check(deltas >= 0, deltas <= _spread([header.last_offset_delta for header in headers], counts))
    _check(np.diff(offsets) > 0)
    stamped = _spread([header.is_log_append_time for header in headers], counts)
    times += _spread([header.base_timestamp for header in headers], counts)
    times = np.where(stamped, _spread([header.max_timestamp for header in headers], counts), times)

    low, high = np.searchsorted(offsets, (first, end))
    taken = slice(int(low), int(high))
    rows = max(0, taken.stop - taken.start)
    columns = [
        _slices(data, key_at[taken], key_end[taken], key_size[taken] < 0),
        _slices(data, value_at[taken], value_end[taken], value_size[taken] < 0),
        *_constants(tp, rows),
        pa.array(offsets[taken]),
        _micros(times[taken]),
        pa.array(stamped[taken].astype(np.int32)),
    ]
    if with_headers:
        columns.append(_headers_of(data, octets, at[taken], header_count[taken], record_end[taken]))
    return pa.record_batch(columns, schema=arrow_schema(with_headers=with_headers))


def _joined(group: list[_Piece]) -> tuple[Buffer, list[tuple[_Piece, int, int]]]:
    """One buffer for all: the fetched bytes, or their decompressed contents joined together."""
    if all(piece.data is group[0].data for piece in group):
        return group[0].data, [(piece, piece.at, piece.end) for piece in group]
    whole = b"".join([memoryview(piece.data)[piece.at : piece.end] for piece in group])
    placed: list[tuple[_Piece, int, int]] = []
    at = 0
    for piece in group:
        placed.append((piece, at, at + piece.end - piece.at))
        at = placed[-1][2]
    return whole, placed


def _varints(octets: NDArray[np.uint8], at: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag varints at these positions, and where each ends. Raises IndexError if one is truncated."""
    octet = octets[at].astype(np.int64)
    value = octet & 0x7F
    end = at + 1
    open_ = np.flatnonzero(octet & 0x80)
    shift = 7
    while open_.size:
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise _Doubt
        octet = octets[end[open_]].astype(np.int64)
        value[open_] |= (octet & 0x7F) << shift
        end[open_] += 1
        open_ = open_[(octet & 0x80) != 0]
        shift += 7
    return (value >> 1) & 0x7FFF_FFFF_FFFF_FFFF ^ -(value & 1), end


def _check(*conditions: NDArray[np.bool_]) -> None:
    if not all(bool(condition.all()) for condition in conditions):
        raise _Doubt


def _spread(values: list[Any], counts: list[int]) -> Any:
    """One value per batch, repeated for each of its records."""
    return np.repeat(np.array(values), counts)


def _slices(data: Buffer, start: Numbers, end: Numbers, absent: NDArray[np.bool_]) -> Any:
    """A column of these parts of `data`. The buffer is treated as one column in which values and the bytes between
    them alternate; Arrow takes every other element.
    """
    rows = len(start)
    edges = np.empty(2 * rows + 1, np.int32)
    edges[0:-1:2] = start
    edges[1::2] = end
    edges[-1] = end[-1] if rows else 0
    both = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    wanted = np.arange(0, 2 * rows, 2)
    return both.take(pa.array(wanted, mask=absent) if absent.any() else pa.array(wanted))


def _constants(tp: TopicPartition, rows: int) -> list[Any]:
    return [pa.repeat(pa.scalar(tp.topic), rows), pa.repeat(pa.scalar(tp.partition, pa.int32()), rows)]


def _micros(times_ms: Numbers) -> Any:
    return pa.array(times_ms * 1000).cast(pa.timestamp("us", tz="UTC"))


def _headers_of(
    data: bytes, octets: NDArray[np.uint8], at: Numbers, counts: Numbers, record_end: Numbers
) -> Any:
    """A column of the headers that begin at these positions; null where there are none, as in Spark's connector.

    The first headers of all records are read together, then the second ones, and so on.
    """
    most = int(counts.max(initial=0))
    if most == 0:
        return pa.nulls(len(counts), _HEADERS)
    if most > _HEADERS_MAX:
        raise _Doubt
    at = at.copy()
    rounds: list[Numbers] = []
    for nth in range(most):
        rows = np.flatnonzero(counts > nth)
        key_size, key_at = _varints(octets, at[rows])
        key_end = key_at + key_size
        _check(key_size >= 0, key_end <= record_end[rows])
        value_size, value_at = _varints(octets, key_end)
        value_end = value_at + np.maximum(value_size, 0)
        _check(value_size >= -1, value_end <= record_end[rows])
        at[rows] = value_end
        rounds.append(np.stack([rows, key_at, key_end, value_at, value_end, value_size]))
    _check((at == record_end) | (counts == 0))
    found = np.concatenate(rounds, axis=1)
    # By record; a stable sort keeps the order of the headers in each.
    _, key_at, key_end, value_at, value_end, value_size = found[:, np.argsort(found[0], kind="stable")]
    try:
        keys = _slices(data, key_at, key_end, np.zeros(len(key_at), np.bool_)).cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        raise _Doubt from None
    values = _slices(data, value_at, value_end, value_size < 0)
    headers = pa.StructArray.from_arrays([keys, values], fields=list(_HEADERS.value_type))
    edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    # A null in the place of a list's start makes the list null.
    return pa.ListArray.from_arrays(
        pa.array(edges, mask=np.append(counts == 0, False)), headers, type=_HEADERS
    )


def _header_cell(record: Record) -> list[dict[str, Any]] | None:
    """None for a record without headers, as in Spark's Kafka connector."""
    return [{"key": name, "value": value} for name, value in record.headers] or None


# --- slow path ---


def _records(piece: _Piece) -> list[Record]:
    return records_of(piece.source, piece.source_at, piece.header, limit_bytes=DECOMPRESSED_BYTES_MAX)


def _carefully(group: list[_Piece], tp: TopicPartition, first: int, end: int, with_headers: bool) -> Any:
    records: list[Record] = []
    kinds: list[int] = []
    for piece in group:
        chosen = [record for record in _records(piece) if first <= record.offset < end]
        records += chosen
        kinds += [int(piece.header.is_log_append_time)] * len(chosen)
    columns = [
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        *_constants(tp, len(records)),
        pa.array([record.offset for record in records], pa.int64()),
        _micros(np.array([record.timestamp_ms for record in records], np.int64)),
        pa.array(kinds, pa.int32()),
    ]
    if with_headers:
        columns.append(pa.array([_header_cell(record) for record in records], _HEADERS))
    return pa.record_batch(columns, schema=arrow_schema(with_headers=with_headers))
