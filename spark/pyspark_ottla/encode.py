"""Encodes columns of rows into record batches, one partition after the other. [P]

No object per row: numpy computes the sizes and the numbers of all records of a partition at once, and Arrow joins them
with keys, values and headers. The buffer of the joined column *is* the records of the batches, one after the other.

A record in format v2 is: length, attributes (0), timestamp delta, offset delta, key length, key, value length, value,
header count, headers. All numbers but the attributes are zigzag varints; -1 is the length of null.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ottla_core.records.batch import HEADER_BYTES
from ottla_core.records.encoded import EncodedRecords

Numbers = NDArray[np.int64]

#: Attributes and five numbers of at most five bytes, and a timestamp of at most ten.
_OVERHEAD_BYTES = 1 + 5 * 5 + 10
_VARINT_BYTES_MAX = 10


class EncodingProblem(Exception):
    """Why rows cannot be records, in one sentence."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one topic, as Arrow arrays of one length."""

    key: Any
    value: Any
    #: Encoded headers of each row (their count and all of them); None if no row has headers.
    headers: Any
    timestamps_ms: Numbers

    def sizes(self) -> Numbers:
        """At least the bytes that each record takes."""
        found = _lengths(self.key) + _lengths(self.value) + _OVERHEAD_BYTES
        return found if self.headers is None else found + _lengths(self.headers)

    def taken(self, rows: Numbers) -> Rows:
        which = pa.array(rows)
        headers = None if self.headers is None else self.headers.take(which)
        return Rows(self.key.take(which), self.value.take(which), headers, self.timestamps_ms[rows])


class PartitionBatch(NamedTuple):
    partition: int
    records: EncodedRecords


def encode(
    rows: Rows, partitions: Numbers, *, batch_bytes: int, compression: int
) -> Iterator[PartitionBatch]:
    """Batches of the rows of each partition, in the order of the rows. `partitions` names each row's partition."""
    order = np.argsort(partitions, kind="stable")
    ordered = rows if _is_sorted(partitions) else rows.taken(order)
    sizes = ordered.sizes()
    of_row = partitions[order]
    starts = batch_starts(sizes, np.flatnonzero(np.diff(of_row, prepend=-1)), batch_bytes - HEADER_BYTES)
    counts = np.diff(starts, append=len(sizes))
    times = ordered.timestamps_ms
    base = times[starts]
    newest = np.maximum.reduceat(times, starts)
    deltas = np.arange(len(sizes)) - np.repeat(starts, counts)
    joined = _records(ordered, times - np.repeat(base, counts), deltas)
    edges = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :]
    data = memoryview(joined.buffers()[2])
    for start, count, first, last in zip(
        starts.tolist(), counts.tolist(), base.tolist(), newest.tolist(), strict=True
    ):
        yield PartitionBatch(
            int(of_row[start]),
            EncodedRecords(
                data[edges[start] : edges[start + count]],
                count,
                base_timestamp_ms=first,
                max_timestamp_ms=last,
                compression=compression,
            ),
        )


def _is_sorted(numbers: Numbers) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())


def batch_starts(sizes: Numbers, borders: Numbers, room: int) -> Numbers:
    """Indexes where a batch begins: at every border, and where the next row would exceed `room` bytes."""
    ends = np.cumsum(sizes)
    found: list[int] = []
    for at, stop in zip(borders.tolist(), [*borders[1:].tolist(), len(sizes)], strict=True):
        while at < stop:
            found.append(at)
            before = int(ends[at - 1]) if at else 0
            at = max(at + 1, min(stop, int(np.searchsorted(ends, before + room, side="right"))))
    return np.array(found, np.int64)


def spread(sizes: Numbers, turn: int, batch_bytes: int) -> Numbers:
    """For rows without a key: a number that rises by one with each batch of bytes, from `turn` on."""
    return turn + np.cumsum(sizes) // batch_bytes


def encoded_headers(column: Any) -> Any:
    """A column of headers (`array<struct<key:string,value:binary>>`), encoded; None if all rows have none."""
    counts = _numbers(pc.fill_null(pc.list_value_length(column), 0))
    if not counts.any():
        return None
    each = column.flatten()  # without the elements of null lists
    names, values = each.field("key"), each.field("value")
    if each.null_count or names.null_count:
        raise EncodingProblem(
            "A row has a header without a key: an element of its column headers, or its key, is null."
        )
    names = names.cast(pa.binary())
    single = _join(_varints(_lengths(names)), names, _varints(_null_lengths(values)), values)
    edges = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    return _join(_varints(counts), pc.binary_join(pa.ListArray.from_arrays(edges, single), b""))


def _records(rows: Rows, time_deltas: Numbers, offset_deltas: Numbers) -> Any:
    """A column with one encoded record in each row."""
    head = _join(_varints(time_deltas), _varints(offset_deltas), _varints(_null_lengths(rows.key)))
    value_size = _varints(_null_lengths(rows.value))
    headers: Any = pa.scalar(b"\x00", pa.binary()) if rows.headers is None else rows.headers
    headers_size = 1 if rows.headers is None else _lengths(rows.headers)
    size = (
        1 + _lengths(head) + _lengths(rows.key) + _lengths(value_size) + _lengths(rows.value) + headers_size
    )
    attributes = pa.scalar(b"\x00", pa.binary())
    return _join(_varints(size), attributes, head, rows.key, value_size, rows.value, headers)


def _join(*parts: Any) -> Any:
    """The parts of each row joined; null adds nothing."""
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def _lengths(column: Any) -> Numbers:
    """Bytes of each element; 0 for null."""
    return _numbers(pc.fill_null(pc.binary_length(column), 0))


def _null_lengths(column: Any) -> Numbers:
    """Bytes of each element; -1 for null."""
    return _numbers(pc.fill_null(pc.binary_length(column), -1))


def _numbers(column: Any) -> Numbers:
    made: Numbers = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return made


def _varints(numbers: Numbers) -> Any:
    """A binary column of zigzag varints."""
    left = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    width = int(left.max(initial=0)).bit_length()
    columns = max(1, -(-width // 7))
    octets = np.empty((len(numbers), columns), np.uint8)
    sizes = np.ones(len(numbers), np.int64)
    for column in range(columns):
        more = left > 0x7F
        octets[:, column] = (left & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        sizes += more
        left >>= np.uint64(7)
    edges = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    kept = octets.ravel() if columns == 1 else octets[np.arange(columns) < sizes[:, None]]
    return pa.Array.from_buffers(
        pa.binary(), len(numbers), [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(kept))]
    )
