"""Conditions of `ottla consume --where` on JSON values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_cli.json_condition import json_condition
from ottla_cli.record_filter import record_filter
from ottla_client.record import ConsumerRecord

ORDER = {
    "user": {"id": 5, "name": "Ada", "vip": True, "e-mail": "a@b", "first name": "A"},
    "items": [{"sku": "tea", "price": 3.5}, {"sku": "milk", "price": 1}],
    "state": "open",
    "note": None,
    "count": 0,
}


@pytest.mark.parametrize(
    "condition",
    [
        "$.user.id == 5",
        "$.user.id==5",
        "$.user.id == 5.0",
        "$.user.id != 6",
        '$.user.id != "5"',
        "$.user.id >= 5",
        "$.user.name == Ada",
        '$.user.name == "Ada"',
        "$.user.name < B",
        "$.user.vip == true",
        "$.user.e-mail =~ @b$",
        '$.user["first name"] == A',
        "$.items[0].sku == tea",
        "$.items[-1].sku == milk",
        "$.items[*].sku == milk",
        "$.items[*].price < 2",
        '$.items[*].sku != "coffee"',
        "$.user[*] == 5",
        "$.state =~ ^op",
        "$.note == null",
        "$.count == 0",
        "$.count",
        "$.user",
        "$.missing != 5",
        "$",
    ],
)
def test_conditions_that_hold(condition: str) -> None:
    assert json_condition(condition)(ORDER)


@pytest.mark.parametrize(
    "condition",
    [
        "$.user.id == 6",
        '$.user.id == "5"',
        "$.user.vip == 1",
        "$.count == false",
        "$.user.id < 5",
        "$.user.id < z",
        "$.user.id =~ 5",
        "$.missing == 5",
        "$.missing",
        "$.note",
        "$.items[2].sku == tea",
        "$.items.sku == tea",
        "$.items[*].sku == coffee",
        "$.items[*].sku != tea",
        "$.state[0] == o",
    ],
)
def test_conditions_that_do_not_hold(condition: str) -> None:
    assert not json_condition(condition)(ORDER)


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("user.id == 5", "begins with \\$"),
        ("", "begins with \\$"),
        ("$.user..id == 5", "does not begin with .name"),
        ("$.items[x] == 5", "does not begin with .name"),
        ("$.user.id = 5", "is not an operator"),
        ("$.user.id ==", "is not an operator"),
        ("$.user.id < true", "only numbers and text"),
        ("$.state =~ (", "not a regular expression"),
    ],
)
def test_what_is_no_condition_is_explained(condition: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        json_condition(condition)


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_JSON = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=9)


@given(_JSON, st.sampled_from(["==", "!=", "<", ">=", "=~"]), _LEAVES)
def test_no_document_breaks_a_condition(document: object, sign: str, value: object) -> None:
    try:
        holds = json_condition(f"$.a[*][0] {sign} {json.dumps(value)}")
    except ValueError:
        return
    assert holds(document) in (True, False)


@given(_JSON)
def test_a_value_equals_itself(document: object) -> None:
    assert json_condition(f"$ == {json.dumps(document)}")(document)


def record(value: bytes | None) -> ConsumerRecord:
    return ConsumerRecord("t", 0, 0, 0, None, value, ())


def test_records_whose_value_is_not_json_are_left_out() -> None:
    shown = record_filter(None, None, [], ["$.a == 1", "$.b"])
    assert shown is not None
    assert shown(record(b'{"a":1,"b":2}'))
    assert not shown(record(b'{"a":1}')), "all conditions hold"
    assert not shown(record(b"a = 1")) and not shown(record(None)) and not shown(record(b"\xff"))
