"""Record batches into Arrow columns: the same rows as the client's own reader gives, and never worse on bad bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_core.errors import CorruptMessage, MessageTooLarge, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import HEADER_BYTES, LOG_APPEND_TIME_FLAG, complete_batches, header_at, reseal
from ottla_core.records.codec import Record, build_batch, records_of
from ottla_core.records.compression import Compression
from pyspark_ottla import columns as columns_module
from pyspark_ottla.columns import arrow_batches, arrow_schema
from pyspark_ottla.source import schema_of

TP = TopicPartition("t", 3)
octets = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
records = st.lists(
    st.builds(Record, st.just(0), st.integers(0, 2**41), octets, octets, st.just([]) | headers),
    min_size=1,
    max_size=40,
)


def rows(
    data: bytes, first: int = 0, end: int = 1 << 60, *, with_headers: bool = True
) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for batch in arrow_batches(data, list(complete_batches(data)), TP, first, end, with_headers=with_headers):
        assert batch.schema.equals(arrow_schema(with_headers=with_headers))
        batch.validate(full=True)
        # As numbers: damaged times may lie beyond what datetime can say.
        times = batch.column("timestamp").cast(pa.int64())
        made += batch.set_column(5, "timestamp", times).to_pylist()
    return made


def expected(data: bytes, first: int = 0, end: int = 1 << 60) -> list[tuple[Any, ...]]:
    return [
        (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        for at, header in complete_batches(data)
        for record in records_of(data, at, header, limit_bytes=1 << 30)
        if first <= record.offset < end
    ]


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    named = [(header["key"], header["value"]) for header in row["headers"] or ()]
    return row["offset"], row["timestamp"] // 1000, row["key"], row["value"], named


@given(st.lists(st.tuples(records, st.sampled_from(list(Compression))), min_size=1, max_size=4), st.data())
@settings(deadline=None, max_examples=examples(80))
def test_the_same_rows_as_the_consumers(
    batches: list[tuple[list[Record], Compression]], data: st.DataObject
) -> None:
    joined, offset = b"", data.draw(st.integers(0, 2**40))
    begin = offset
    for some, compression in batches:
        joined += build_batch(some, compression=compression, base_offset=offset)
        offset += len(some) + data.draw(st.integers(0, 3))
    first, end = data.draw(st.integers(begin, offset)), data.draw(st.integers(begin, offset))
    got = rows(joined, first, end)
    assert [plain(row) for row in got] == expected(joined, first, end)
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in got} <= {("t", 3, 0)}


@given(records, st.data())
@settings(deadline=None, max_examples=examples(150))
def test_damaged_records_give_the_readers_own_error_or_rows(some: list[Record], data: st.DataObject) -> None:
    """Whoever can write can also compute a CRC, so a right one proves nothing."""
    made = bytearray(build_batch(some))
    for _ in range(data.draw(st.integers(1, 4))):
        made[data.draw(st.integers(HEADER_BYTES, len(made) - 1))] = data.draw(st.integers(0, 255))
    reseal(made, 0, len(made))
    damaged = bytes(made)
    try:
        wanted = expected(damaged)
    except RequestError:
        # Headers are not looked into unless asked for, so what is wrong there may go unseen.
        try:
            rows(damaged)
        except (CorruptMessage, MessageTooLarge):
            pass
        return
    assert [plain(row)[:1] + plain(row)[2:4] for row in rows(damaged)] == [w[:1] + w[2:4] for w in wanted]


def test_a_wrong_crc_is_found() -> None:
    made = bytearray(build_batch([Record(0, 1, b"k", b"value", [])]))
    made[-3] ^= 1
    with pytest.raises(CorruptMessage, match="offset 0 of t-3 fails its CRC"):
        rows(bytes(made))


def test_times_set_by_the_broker() -> None:
    made = build_batch([Record(0, 1000, None, b"a", []), Record(0, 2000, None, b"b", [])])
    header = header_at(made)
    made[22] |= LOG_APPEND_TIME_FLAG
    reseal(made, 0, header.size)
    got = rows(bytes(made))
    assert [row["timestamp"] // 1000 for row in got] == [2000, 2000]
    assert [row["timestampType"] for row in got] == [1, 1]


def test_the_quick_way_is_the_one_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("ordinary records took the slow way")

    monkeypatch.setattr(columns_module, "_carefully", unexpected)
    some = [Record(0, 10**12 + n, None if n % 3 else b"k%d" % n, b"v" * (n % 2000), []) for n in range(5000)]
    data = bytes(build_batch(some)) + bytes(build_batch(some, compression=Compression.ZSTD, base_offset=5000))
    assert len(rows(data, with_headers=False)) == 10_000


@pytest.mark.parametrize("every", [1, 7, 4999])
def test_headers_take_the_quick_way(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive always asks for headers, and one record that has some must not make all others slow."""
    some = [
        Record(0, 1, b"k", b"v", [(f"h{i}", None if i == 1 else b"%d" % n) for i in range(n % 4)])
        if n % every == 0
        else Record(0, 1, b"k", b"v", [])
        for n in range(5000)
    ]
    data = bytes(build_batch(some)) + bytes(build_batch(some, compression=Compression.ZSTD, base_offset=5000))
    wanted = expected(data, 10, 9000)

    def unexpected(*_: object) -> None:
        raise AssertionError("ordinary headers took the slow way")

    monkeypatch.setattr(columns_module, "_carefully", unexpected)
    monkeypatch.setattr(columns_module, "_records", unexpected)
    got = rows(data, 10, 9000)
    assert [plain(row) for row in got] == wanted
    assert [row["headers"] for row in got if row["headers"] == []] == [], "null, not an empty list"


def test_columns_are_cut_before_they_grow_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_ROWS_MAX", 7)
    monkeypatch.setattr(columns_module, "_GROUP_BYTES", 100)
    data = b"".join(
        bytes(build_batch([Record(0, 1, None, b"12345", [])] * 10, base_offset=n * 10)) for n in range(5)
    )
    made = list(arrow_batches(data, list(complete_batches(data)), TP, 3, 47, with_headers=False))
    assert max(batch.num_rows for batch in made) == 7
    assert [offset for batch in made for offset in batch.column("offset").to_pylist()] == list(range(3, 47))


@pytest.mark.parametrize("with_headers", [False, True])
def test_columns_are_what_spark_expects(with_headers: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    expected_schema = to_arrow_schema(schema_of(with_headers=with_headers), timezone="UTC")
    assert arrow_schema(with_headers=with_headers).equals(expected_schema)
