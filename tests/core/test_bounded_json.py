"""JSON of others: what is too deep or not JSON is a ValueError, everything else is what `json` reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_core.bounded_json import DEPTH_MAX, parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max((depth_of(part) for part in inner), default=0)


@given(VALUES, st.integers(0, 5))
def test_reads_what_json_reads_down_to_a_depth(value: object, depth_max: int) -> None:
    data = json.dumps(value).encode()
    if depth_of(value) <= depth_max:
        assert parse_json(data, depth_max=depth_max) == value
    else:
        with pytest.raises(ValueError, match="nested deeper"):
            parse_json(data, depth_max=depth_max)


@given(st.binary(max_size=200))
def test_other_bytes_are_a_value_error_at_most(data: bytes) -> None:
    try:
        parse_json(data)
    except ValueError:
        pass


@pytest.mark.parametrize("one", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("times", [DEPTH_MAX + 1, 900, 1_000_000])
def test_depth_costs_no_recursion(one: bytes, times: int) -> None:
    with pytest.raises(ValueError):
        parse_json(one * times)


def test_brackets_in_texts_are_no_depth() -> None:
    assert parse_json(json.dumps(["[" * 1000]).encode()) == ["[" * 1000]


def test_the_bytes_are_not_repeated_in_the_error() -> None:
    with pytest.raises(ValueError) as refused:
        parse_json(b"\xff" * 100_000)
    assert len(str(refused.value)) < 100
