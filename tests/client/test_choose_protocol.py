"""The rule by which a consumer chooses its group protocol."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ottla_client import Consumer
from ottla_client.choose_protocol import choose_protocol
from ottla_client.consumer_group_session import broker_regex

CLASSIC_ONLY: list[dict[str, Any]] = [
    {"session_timeout_ms": 45_000},
    {"heartbeat_interval_ms": 3000},
    {"partition_assignment_strategy": "range"},
]


def member_id(**settings: Any) -> str:
    """Made by members that start with the broker-side protocol only."""
    consumer = Consumer("127.0.0.1:1", group_id="g", **settings)
    assert consumer._group is not None
    return consumer._group._settings.member_id


@pytest.mark.parametrize("given", CLASSIC_ONLY)
def test_a_setting_of_classic_groups_chooses_them(given: dict[str, Any]) -> None:
    assert member_id(**given) == "" == member_id(group_protocol="classic", **given)
    (name,) = given
    with pytest.raises(ValueError, match=f"{name}: only for classic groups"):
        member_id(group_protocol="consumer", **given)
    with pytest.raises(ValueError, match=f"{name} asks for a classic one"):
        member_id(group_remote_assignor="range", **given)


def test_without_one_it_is_broker_side() -> None:
    assert member_id() and member_id(max_poll_interval_ms=1000, group_remote_assignor="range")
    assert member_id(group_protocol="consumer") and not member_id(group_protocol="classic")
    chosen = choose_protocol("auto", "", None, None, None)
    assert chosen.timeouts_ms == (45_000, 3000) and chosen.may_fall_back
    assert [each.name for each in chosen.assignors] == ["cooperative-sticky"]


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="choose auto, consumer or classic"):
        choose_protocol("other", "", None, None, None)
    with pytest.raises(ValueError, match="group_protocol asks for a classic one"):
        choose_protocol("classic", "range", None, None, None)
    with pytest.raises(ValueError, match="must be below"):
        choose_protocol("auto", "", 2000, None, None)


def test_patterns_keep_the_flag_that_brokers_know() -> None:
    assert broker_regex(re.compile("a.*")) == "a.*"
    assert broker_regex(re.compile("a.*", re.IGNORECASE)) == "(?i)a.*" == broker_regex(re.compile("(?i)a.*"))
    for flag in (re.VERBOSE, re.MULTILINE, re.ASCII):
        with pytest.raises(ValueError, match="only IGNORECASE"):
            broker_regex(re.compile("a", flag))
