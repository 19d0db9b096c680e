"""Standard input as records: cutting, keys, JSON written by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_cli.input_records import BadInput, NewRecord, Splitter, line_reader, parse_headers, read_json


@given(
    text=st.text(alphabet="ab\r\n", max_size=60).map(str.encode),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    delimiter=st.sampled_from([b"\n", b"\r\n", b"aba"]),
)
def test_chunks_make_no_difference(text: bytes, cuts: list[int], delimiter: bytes) -> None:
    splitter = Splitter(delimiter, 1000)
    edges = [0, *sorted(cuts), len(text)]
    pieces = [piece for start, end in pairwise(edges) for piece in splitter.feed(text[start:end])]
    assert [*pieces, splitter.rest()] == text.split(delimiter)


def test_a_record_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    splitter = Splitter(b"\n", 10)
    assert splitter.feed(b"0123456789\n01234") == [b"0123456789"]
    with pytest.raises(BadInput, match="more than 10 bytes"):
        splitter.feed(b"567890")


def test_lines_with_keys() -> None:
    read = line_reader(key_separator=b":", key=b"fixed", headers=[("h", b"1")], null_if_empty=False)
    assert read(b"k:v:w") == NewRecord(b"v:w", b"k", [("h", b"1")])
    assert read(b"no key") == NewRecord(b"no key", b"fixed", [("h", b"1")])
    assert read(b":") == NewRecord(b"", b"", [("h", b"1")])


def test_empty_is_null_only_where_asked() -> None:
    read = line_reader(key_separator=b":", key=None, headers=(), null_if_empty=True)
    assert read(b"k:") == NewRecord(None, b"k")
    assert read(b"") == NewRecord(None, None)
    assert line_reader(key_separator=None, key=None, headers=(), null_if_empty=False)(b"").value == b""


def test_json_by_hand() -> None:
    made = read_json(b'{"key": "k", "value": {"a": [1, "\xc3\xa9"]}, "headers": {"x": "1", "y": null}}')
    assert made == NewRecord('{"a":[1,"é"]}'.encode(), b"k", [("x", b"1"), ("y", None)])
    assert read_json(b"{}") == NewRecord(None, None, [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello", "not JSON"),
        (b"[1]", "object"),
        (
            b'{"vale": 1}',
            "'vale' is not known; use key, key_base64, value, value_base64, headers, partition",
        ),
        (b'{"partition": -1}', "partition is -1"),
        (b'{"timestamp": true}', "timestamp is True"),
        (b'{"value_base64": "&"}', "not base64"),
        (b'{"headers": ["a"]}', "headers are"),
        (b'{"value": "\\ud800"}', "surrogate"),
    ],
)
def test_json_that_is_no_record_says_why(line: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        read_json(line)


def test_headers_from_the_command_line() -> None:
    assert parse_headers(["a=1=2", "b=", "c"]) == [("a", b"1=2"), ("b", b""), ("c", None)]
    with pytest.raises(ValueError, match="name=value"):
        parse_headers(["=1"])
