"""Columns into record batches: the same records and partitions as the client's own, and never a larger batch."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_client.partitioner import partition_for_key
from ottla_core.records.batch import HEADER_BYTES, header_at, verify
from ottla_core.records.codec import records_of
from ottla_core.records.compression import Compression
from ottla_core.records.encoded import EncodedRecords
from ottla_core.records.structure import check_records
from pyspark_ottla.encode import EncodingProblem, Rows, batch_starts, encode, encoded_headers, spread
from pyspark_ottla.hashing import partitions_of_keys
from pyspark_ottla.rows import windows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
octets = st.none() | st.binary(max_size=300)
headers = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
rows = st.lists(st.tuples(octets, octets, headers, st.integers(0, 2**41), st.integers(0, 3)), min_size=1)


@given(st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=250, max_size=600)), st.data())
@settings(deadline=None, max_examples=examples(150))
def test_the_partitioners_partition_of_every_key(keys: list[bytes | None], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 1000))
    skipped = data.draw(st.integers(0, len(keys)))
    column = pa.array(keys, pa.binary()).slice(skipped)
    found = partitions_of_keys(column, count)
    assert [int(each) for each, key in zip(found, keys[skipped:], strict=True) if key is not None] == [
        partition_for_key(key, count) for key in keys[skipped:] if key is not None
    ]


def made(some: list[Any], batch_bytes: int, compression: Compression) -> list[tuple[int, bytearray]]:
    keys, values, names, times, partitions = zip(*some, strict=True)
    column = pa.array(
        [None if each is None else [{"key": k, "value": v} for k, v in each] for each in names], HEADERS
    )
    columns = Rows(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        encoded_headers(column),
        np.array(times, np.int64),
    )
    found = encode(columns, np.array(partitions, np.int64), batch_bytes=batch_bytes, compression=compression)
    return [(each.partition, each.records.build(producer_id=7, base_sequence=3)) for each in found]


@given(rows, st.integers(100, 5_000), st.sampled_from(list(Compression)))
@settings(deadline=None, max_examples=examples(150))
def test_the_same_records_in_the_order_of_the_rows(
    some: list[Any], batch_bytes: int, compression: Compression
) -> None:
    expected: dict[int, list[Any]] = defaultdict(list)
    for key, value, names, time, partition in some:
        expected[partition].append((time, key, value, names or []))
    found: dict[int, list[Any]] = defaultdict(list)
    for partition, batch in made(some, batch_bytes, compression):
        header = header_at(batch)
        records = records_of(batch, 0, header, limit_bytes=1 << 30)
        assert verify(batch, 0, header)
        assert header.max_timestamp == max(record.timestamp_ms for record in records)
        assert header.compression == compression
        assert (header.producer_id, header.base_sequence) == (7, 3)
        assert [record.offset for record in records] == list(range(header.last_offset_delta + 1))
        found[partition] += [(each.timestamp_ms, each.key, each.value, each.headers) for each in records]
        if compression == Compression.NONE:
            assert len(records) == 1 or len(batch) <= batch_bytes
            # The broker is stricter than the reader.
            for _ in check_records(memoryview(batch)[HEADER_BYTES:], header.count):
                pass
    assert found == expected


@given(st.lists(st.integers(1, 100), min_size=1), st.integers(1, 300), st.data())
def test_batches_begin_where_the_next_row_does_not_fit(
    sizes: list[int], room: int, data: st.DataObject
) -> None:
    borders = sorted({0, *data.draw(st.lists(st.integers(0, len(sizes) - 1)))})
    starts = batch_starts(np.array(sizes), np.array(borders), room).tolist()
    assert set(borders) <= set(starts)
    for at, stop in zip(starts, [*starts[1:], len(sizes)], strict=True):
        assert stop == at + 1 or sum(sizes[at:stop]) <= room
        if stop < len(sizes) and stop not in borders:
            assert sum(sizes[at : stop + 1]) > room


def test_rows_without_a_key_fill_one_partition_after_the_other() -> None:
    assert spread(np.array([60, 60, 60, 60]), 5, 100).tolist() == [5, 6, 6, 7]


@pytest.mark.parametrize("cell", [[None], [{"key": None, "value": b"x"}]])
def test_a_header_without_a_name_is_refused(cell: list[Any]) -> None:
    with pytest.raises(EncodingProblem, match="header without a key"):
        encoded_headers(pa.array([None, cell], HEADERS))


def test_headers_of_rows_that_were_sliced_off_do_not_count() -> None:
    cells = [[{"key": "a", "value": b"1"}], [{"key": "b", "value": None}], []]
    column = pa.array(cells, HEADERS).slice(1)
    assert encoded_headers(column).to_pylist() == [b"\x02\x02b\x01", b"\x00"]


@pytest.mark.parametrize(("rows_each", "size"), [([5, 0, 5, 2], 30), ([100], 100), ([1, 1, 1], 10_000)])
def test_windows_keep_rows_in_order_and_are_bounded(rows_each: list[int], size: int) -> None:
    numbers = iter(range(1000))
    batches = [pa.record_batch({"n": pa.array([next(numbers) for _ in range(n)])}) for n in rows_each]
    found = list(windows(iter(batches), size))
    assert [n for each in found for n in each["n"].to_pylist()] == list(range(sum(rows_each)))
    assert all(each.nbytes < 2 * size for each in found)


def test_encoded_records_are_built_once_and_are_never_empty() -> None:
    records = EncodedRecords(b"\x0c\x00\x00\x00\x01\x01\x00", 1, base_timestamp_ms=1, max_timestamp_ms=1)
    assert not records.append()
    assert len(records.build()) == records.size_bytes
    with pytest.raises(ValueError, match="built already"):
        records.build()
    with pytest.raises(ValueError, match="at least one"):
        EncodedRecords(b"", 0, base_timestamp_ms=1, max_timestamp_ms=1)
