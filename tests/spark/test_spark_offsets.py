"""Offset texts, bounds, and what is asked of the cluster for them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_core.ids import TopicPartition
from pyspark_ottla.offsets import (
    Bound,
    OffsetProblem,
    Position,
    from_json,
    from_nested,
    partitions_from_json,
    questions,
    resolved,
    to_nested,
    too_young,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
partitions = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 2000))


@given(st.dictionaries(partitions, st.integers(0, 2**63 - 1)))
def test_a_checkpoint_gives_back_what_was_put_in(offsets: dict[TopicPartition, int]) -> None:
    assert from_nested(json.loads(json.dumps(to_nested(offsets)))) == offsets


offsets_of = st.dictionaries(partitions, st.integers(0, 2**63 - 1))


@given(
    st.builds(
        Position,
        offsets_of,
        st.dictionaries(st.text(min_size=1, max_size=5), st.text(min_size=1)),
        st.booleans(),
        st.none() | offsets_of,
    )
)
def test_a_checkpoint_gives_back_a_position(position: Position) -> None:
    assert Position.from_nested(json.loads(json.dumps(position.to_nested()))) == position


def test_checkpoints_without_topic_ids_are_read() -> None:
    assert Position.from_nested({"a": {"0": 7}}) == Position({A0: 7})


def test_the_text_of_a_checkpoint_is_a_start() -> None:
    text = json.dumps(Position({A0: 7}, {"a": "id"}, started_at={A0: 1}).to_nested())
    assert from_json(text, "startingOffsets") == {A0: 7}


def test_equal_offsets_are_equal_texts() -> None:
    one, other = {A1: 2, B0: 3, A0: 1}, {B0: 3, A0: 1, A1: 2}
    assert (
        json.dumps(to_nested(one)) == json.dumps(to_nested(other)) == '{"a": {"0": 1, "1": 2}, "b": {"0": 3}}'
    )


@pytest.mark.parametrize(
    "text", ["", "soon", "[1]", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": "1"}}', '{"a": {"0": true}}']
)
def test_invalid_offsets_are_refused_with_the_option_and_an_example(text: str) -> None:
    with pytest.raises(OffsetProblem, match=r'^startingOffsets takes .*"events".*; got '):
        from_json(text, "startingOffsets")


@pytest.mark.parametrize("text", ["a", '{"a": 0}', '{"a": ["x"]}', "{}"])
def test_what_assigns_nothing_is_refused(text: str) -> None:
    with pytest.raises(OffsetProblem, match=r"^assign "):
        partitions_from_json(text)


def test_assigned_partitions() -> None:
    assert partitions_from_json('{"b": [0], "a": [1, 0, 1]}') == [A0, A1, B0]


def test_only_what_is_not_given_is_asked_for() -> None:
    bound = Bound("startingOffsets", offsets={A0: 7, A1: -1, B0: -2})
    assert questions(bound, [A0, A1, B0]) == {A1: "latest", B0: "earliest"}
    assert resolved(bound, [A0, A1, B0], {A1: 50, B0: 5}, {}) == {A0: 7, A1: 50, B0: 5}


def test_a_time_that_no_record_has_reached_becomes_the_latest_offset() -> None:
    bound = Bound("startingTimestamp", timestamp_ms=123)
    assert questions(bound, [A0, A1]) == {A0: 123, A1: 123}
    assert too_young(bound, {A0: 9, A1: -1}) == [A1]
    assert resolved(bound, [A0, A1], {A0: 9, A1: -1}, {A1: 30}) == {A0: 9, A1: 30}


def test_offsets_name_every_partition_and_no_other() -> None:
    bound = Bound("startingOffsets", offsets={A0: 7})
    with pytest.raises(OffsetProblem, match=r"startingOffsets must name every partition .*a-1 is missing"):
        resolved(bound, [A0, A1], {}, {})
    with pytest.raises(OffsetProblem, match="startingOffsets names a-0, which the query does not read"):
        resolved(bound, [], {}, {})
