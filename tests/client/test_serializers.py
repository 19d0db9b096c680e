"""Objects to bytes and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_client.serializers import bytes_serializer, deserializer_for, serializer_for

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [("str", "grüße"), ("int", -(2**63)), ("int", 2**63 - 1), ("json", {"a": [1, None, "ž"]})],
)
def test_round_trip(name: str, value: object) -> None:
    there, back = serializer_for(name), deserializer_for(name)
    assert there is not None and back is not None
    data = there(value)
    assert isinstance(data, bytes)
    assert back(data) == value


@given(_JSON)
def test_json_round_trip(value: object) -> None:
    there, back = serializer_for("json"), deserializer_for("json")
    assert there is not None and back is not None
    assert back(there(value) or b"") == value


def test_int_is_java_s_long_and_reads_its_shorter_kin() -> None:
    there, back = serializer_for("int"), deserializer_for("int")
    assert there is not None and back is not None
    assert there(1) == b"\0\0\0\0\0\0\0\1"
    assert back(b"\xff\xff\xff\xfe") == -2
    with pytest.raises(ValueError, match="2, 4 or 8"):
        back(b"abc")


def test_bytes_pass_and_nothing_is_guessed() -> None:
    assert serializer_for("bytes") is None and deserializer_for(None) is None
    assert bytes_serializer(bytearray(b"x")) == b"x"
    with pytest.raises(TypeError, match="value_serializer"):
        bytes_serializer("text")


def test_unknown_names_are_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="json"):
        serializer_for("avro")
