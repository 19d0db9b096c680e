"""Commands as data: each is found by its file's name, and its JSON comes from its fields."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.controller.command import Command
from ottla_broker.controller.command_json import codec
from ottla_broker.controller.command_table import command_class, command_names
from ottla_broker.controller.commands.alter_topic_config import AlterTopicConfig
from ottla_broker.controller.commands.create_topics import CreateTopics
from ottla_broker.requests import ConfigChange, NewTopic, TopicResult
from ottla_core.errors import TopicAlreadyExists


@pytest.mark.parametrize("name", command_names())
def test_every_command_is_complete(name: str) -> None:
    found = command_class(name)
    assert issubclass(found, Command) and found.name() == name
    codec(found), codec(found.result_type)
    # The envelope of a request between brokers has these.
    assert not {field.name for field in fields(found)} & {"v", "ask", "timeout_s"}  # type: ignore[arg-type]


def through_json(type_: Any, value: Any) -> Any:
    made = codec(type_)
    return made.decode(json.loads(json.dumps(made.encode(value))))


assignments = st.none() | st.lists(st.lists(st.integers(0, 9)).map(tuple)).map(tuple)
configs = st.none() | st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5), max_size=3)
topics = st.builds(
    NewTopic, st.text(max_size=9), st.integers(-1, 99), st.integers(-1, 9), configs, assignments
)


@given(st.lists(topics, max_size=3).map(tuple), st.booleans())
def test_commands_round_trip(wanted: tuple[NewTopic, ...], validate_only: bool) -> None:
    command = CreateTopics(wanted, validate_only)
    assert through_json(CreateTopics, command) == command


def test_results_round_trip_with_their_errors() -> None:
    made = TopicResult("a", None, UUID(int=5), 3, 2, {"x": "y"})
    refused = TopicResult("b", TopicAlreadyExists("Topic 'b' exists already."))
    (one, two) = through_json(list[TopicResult], [made, refused])
    assert one == made and two.name == "b"
    assert isinstance(two.error, TopicAlreadyExists) and two.error.message == refused.error.message  # type: ignore[union-attr]


def test_the_json_of_a_command() -> None:
    command = AlterTopicConfig("t", edits=(ConfigChange("set", "retention.ms", "5"),))
    assert codec(AlterTopicConfig).encode(command) == {
        "topic": "t",
        "edits": [["set", "retention.ms", "5"]],
        "values": None,
    }


def test_other_releases_may_have_fewer_and_more_fields() -> None:
    assert codec(CreateTopics).decode({"topics": [{"name": "a", "later": 1}], "newer": {}}) == CreateTopics(
        (NewTopic("a"),)
    )
    assert codec(ConfigChange).decode(["delete", "a"]) == ConfigChange("delete", "a")


@pytest.mark.parametrize(
    "values",
    [
        None, [], 7, {}, {"topics": None}, {"topics": {}}, {"topics": [{}]}, {"topics": [{"name": 7}]},
        {"topics": [{"name": "a", "partitions": "3"}]}, {"topics": [{"name": "a", "partitions": True}]},
        {"topics": [], "validate_only": 1}, {"topics": [{"name": "a", "assignments": [[None]]}]},
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(values: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        codec(CreateTopics).decode(values)


def test_a_type_without_a_json_form_is_refused_at_once() -> None:
    @dataclass
    class Odd:
        what: bytes

    with pytest.raises(TypeError):
        codec(Odd)
