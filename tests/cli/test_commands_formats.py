"""Records on their way out and in again: formats, templates, JSON both ways."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_cli.formats import as_json_line, formatter, hex_dump, unescape
from ottla_cli.input_records import read_json
from ottla_client.record import ConsumerRecord

RECORD = ConsumerRecord("orders", 2, 41, 1_774_965_600_123, b"k", b"v\xff", [("a", b"1"), ("b", None)])
TOMBSTONE = ConsumerRecord("orders", 0, 7, -1, None, None, [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("value", b"v\xff\n"),
        ("key-value", b"k\tv\xff\n"),
        ("%t/%p/%o %k=%v\\n", b"orders/2/41 k=v\xff\n"),
        ("%s %S %K %V|", b"v\xff 2 1 2|"),
        ("%T %d", b"1774965600123 2026-03-31T14:00:00.123Z"),
        ("%h %%\\x00", b"a=1,b= %\0"),
    ],
)
def test_a_record_in_each_format(name: str, expected: bytes) -> None:
    assert formatter(name)(RECORD) == expected


def test_null_is_distinguished_from_empty_on_request() -> None:
    assert formatter("key-value", key_separator=b":", null=b"NULL")(TOMBSTONE) == b"NULL:NULL\n"
    assert formatter("%k %K %v %V %d", null=b"-")(TOMBSTONE) == b"- -1 - -1 -"
    empty = TOMBSTONE._replace(key=b"", value=b"")
    assert formatter("%k|%K|%v|%V", null=b"-")(empty) == b"|0||0"


@pytest.mark.parametrize("wrong", ["values", "%y", "100%", "%v\\q"])
def test_a_format_that_does_not_exist_is_a_sentence(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"there are|choose|write"):
        formatter(wrong)


def test_json_says_which_bytes_are_no_text() -> None:
    found = json.loads(formatter("json")(RECORD))
    assert found == {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "timestamp": 1774965600123,
        "timestamp_type": "create",
        "key": "k",
        "value_base64": "dv8=",
        "headers": [{"key": "a", "value": "1"}, {"key": "b", "value": None}],
    }


def test_hex_shows_where_it_is_and_all_bytes() -> None:
    lines = formatter("hex")(RECORD._replace(value=bytes(range(20)))).decode().splitlines()
    assert lines[0] == "orders-2 offset 41 2026-03-31T14:00:00.123Z"
    assert "    00000010  10 11 12 13                                       |....|" in lines
    assert hex_dump(b"") == []


def test_unescape_leaves_other_text_alone() -> None:
    assert unescape("a\\tb\\n\\\\é\\xff") == b"a\tb\n\\\xc3\xa9\xff"


_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
_headers = st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=3)


@given(key=_bytes, value=_bytes, headers=_headers, timestamp=st.integers(0, 2**60))
def test_what_consume_writes_as_json_produce_reads_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> None:
    line = as_json_line(ConsumerRecord("t", 3, 0, timestamp, key, value, headers))
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    again = read_json(line)
    assert (again.key, again.value, list(again.headers)) == (key, value, headers)
    assert (again.partition, again.timestamp_ms) == (3, timestamp)
