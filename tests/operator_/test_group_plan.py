from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_.bodies import group
from ottla_operator.group_plan import (
    Move,
    Record,
    SeenGroup,
    SeenMember,
    begin_reset,
    condition_of,
    facts_of,
    must_act,
    reset_condition,
    reset_topics,
    resume_reset,
    row_of,
    targets_from,
)
from ottla_operator.specs import GroupSpec, OffsetReset

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
MEMBER = SeenMember("m-1", "", "app", "10.0.0.1", 10_000, 60_000, (A0, A1))
IDLE = SeenGroup(
    "billing",
    "Empty",
    generation=3,
    coordinator=1,
    committed={A0: 5, A1: 2},
    ends={A0: 9, A1: 4, B0: 7},
    starts={A0: 1, A1: 0, B0: 3},
)
ACTIVE = replace(IDLE, state="Stable", protocol="range", members=(MEMBER,))


def spec(**more: Any) -> GroupSpec:
    return GroupSpec.of(group(**more))


def reset(**more: Any) -> OffsetReset:
    made = spec(offsetReset={"id": "one", "to": "earliest", **more}).reset
    assert made is not None
    return made


def test_status_shows_members_and_lag() -> None:
    facts = facts_of(ACTIVE)
    assert facts["members"] == [
        {
            "memberId": "m-1",
            "clientId": "app",
            "host": "10.0.0.1",
            "partitionCount": 2,
            "partitions": ["a-0", "a-1"],
        }
    ]
    assert facts["note"] is None
    assert facts["lag"] == [
        {"topic": "a", "partition": 0, "committed": 5, "end": 9, "lag": 4, "memberId": "m-1"},
        {"topic": "b", "partition": 0, "committed": -1, "end": 7, "lag": 4},
        {"topic": "a", "partition": 1, "committed": 2, "end": 4, "lag": 2, "memberId": "m-1"},
    ]
    assert (facts["totalLag"], facts["state"], facts["generation"], facts["assignor"]) == (
        10,
        "Stable",
        3,
        "range",
    )


def test_status_has_lag_in_seconds_and_what_kind_of_group_it_is() -> None:
    facts = facts_of(replace(ACTIVE, type="consumer", seconds={A0: 2.2, A1: 0.0}))
    assert (facts["type"], facts["epoch"], facts["lagSeconds"]) == ("consumer", 3, 3)
    assert {(row["topic"], row["partition"]): row.get("lagSeconds") for row in facts["lag"]} == {
        A0: 3,
        A1: 0,
        B0: None,
    }
    unknown = facts_of(replace(ACTIVE, type="classic"))
    assert (unknown["epoch"], unknown["lagSeconds"]) == (None, None), "an older broker knows no seconds"


def test_a_mistyped_topic_is_named() -> None:
    assert facts_of(IDLE, ["a", "b"])["note"] is None
    assert facts_of(IDLE, ["a", "bb"])["note"] == "There is no topic 'bb', which spec.topics names."


def test_a_large_group_is_cut_with_a_note() -> None:
    members = tuple(
        replace(MEMBER, member_id=f"m-{n}", partitions=tuple(("t" * 200, 10 * n + k) for k in range(10)))
        for n in range(600)
    )
    ends = {("t" * 200, n): n for n in range(6000)}
    facts = facts_of(replace(ACTIVE, members=members, ends=ends, committed=dict.fromkeys(ends, 0)))
    assert (facts["memberCount"], facts["partitionCount"], facts["totalLag"]) == (600, 6000, sum(range(6000)))
    assert facts["lag"][0]["partition"] == 5999, "the greatest lag is shown"
    assert "500 of 600 members" in facts["note"] and "of 6000" in facts["note"]
    assert "first 4 of their partitions" in facts["note"]
    assert len(json.dumps(facts)) < 1_000_000, "etcd takes 1.5 MiB"


def test_lag_is_never_negative_and_unknown_ends_count_nothing() -> None:
    odd = replace(IDLE, committed={A0: 50, B0: 1, ("gone", 0): 4}, ends={A0: 9, B0: 7})
    assert {(row["topic"], row["lag"]) for row in facts_of(odd)["lag"]} == {("a", 0), ("b", 6), ("gone", 0)}


@pytest.mark.parametrize(
    ("seen", "holds", "reason"),
    [
        (IDLE, True, "NoMembers"),
        (ACTIVE, True, "Stable"),
        (replace(ACTIVE, state="PreparingRebalance"), False, "Rebalancing"),
    ],
)
def test_ready(seen: SeenGroup, holds: bool, reason: str) -> None:
    found = condition_of(seen)
    assert (found.holds, found.reason) == (holds, reason)


def test_where_a_reset_goes() -> None:
    partitions = [A0, A1]
    assert targets_from(reset(), partitions, {}, IDLE) == {A0: 1, A1: 0}
    assert targets_from(reset(to="latest"), partitions, {}, IDLE) == {A0: 9, A1: 4}
    timed = reset(to="time", time="2026-01-01T00:00:00Z")
    assert targets_from(timed, partitions, {A0: 3, A1: -1}, IDLE) == {A0: 3, A1: 4}, (
        "nothing that young: the end"
    )
    named = reset(to="offsets", offsets=[{"topic": "b", "partition": 0, "offset": 6}])
    assert targets_from(named, partitions, {}, IDLE) == {B0: 6}


def test_what_a_reset_is_about() -> None:
    assert reset_topics(spec(topics=["b"]), reset(), IDLE) == {"a", "b"}
    assert reset_topics(spec(topics=["b"]), reset(topics=["c"]), IDLE) == {"c"}


def test_an_idle_group_is_reset_after_it_is_written_down() -> None:
    record = begin_reset(reset(), IDLE, {A0: 1, A1: 0}, None)
    assert record.state == "Applying" and record.commit
    assert record.moves == (Move("a", 0, 5, -1, 1), Move("a", 1, 2, -1, 0))
    row = row_of(reset(), record, "now")
    assert row["moved"][0] == {"topic": "a", "partition": 0, "from": 5, "fromMs": -1, "to": 1}
    assert must_act(reset(), row) == "resume"


def test_active_members_are_never_overruled() -> None:
    refused = begin_reset(reset(), ACTIVE, {A0: 1}, None)
    assert (refused.state, refused.commit) == ("Refused", False)
    assert must_act(reset(), row_of(reset(), refused, "now")) == "nothing"
    patient = reset(whenActive="Wait")
    waiting = begin_reset(patient, ACTIVE, {A0: 1}, None)
    assert (waiting.state, waiting.commit) == ("Waiting", False)
    row = row_of(patient, waiting, "now")
    assert must_act(patient, row) == "begin"
    assert begin_reset(patient, ACTIVE, {A0: 1}, row).same, "waiting on is no news"
    assert begin_reset(patient, IDLE, {A0: 1}, row).commit


def test_what_cannot_be_is_refused() -> None:
    assert begin_reset(reset(), IDLE, {}, None).state == "Failed"
    beyond = begin_reset(reset(), IDLE, {A0: 99}, None)
    assert beyond.state == "Failed" and "a-0" in beyond.message
    assert begin_reset(reset(), IDLE, {("gone", 0): 0}, None).state == "Failed"


def test_another_request_needs_another_id() -> None:
    done = row_of(reset(), Record("Done", ""), "now")
    assert must_act(reset(), done) == "nothing"
    assert must_act(reset(to="latest"), done) == "changed"
    told = reset_condition(reset(to="latest"), done, "changed")
    assert told is not None and (told.holds, told.reason) == (False, "IdUsed")
    assert must_act(reset(id="two", to="latest"), done) == "begin"
    assert must_act(None, done) == "nothing"


APPLYING = row_of(reset(), begin_reset(reset(), IDLE, {A0: 1, A1: 0}, None), "now")


@pytest.mark.parametrize(
    ("committed", "members", "state", "commit"),
    [
        ({A0: 1, A1: 0}, (), "Done", False),
        ({A0: 5, A1: 2}, (), "Applying", True),  # the commit never arrived
        ({A0: 1, A1: 2}, (), "Applying", True),  # half of it did
        ({A0: 3, A1: 0}, (), "Interrupted", False),  # somebody read on since
        ({A0: 5, A1: 2}, (MEMBER,), "Failed", False),
        ({A0: 1, A1: 0}, (MEMBER,), "Done", False),
        ({A0: 1, A1: 2}, (MEMBER,), "Interrupted", False),
    ],
)
def test_after_an_interruption(
    committed: dict[tuple[str, int], int], members: tuple[SeenMember, ...], state: str, commit: bool
) -> None:
    record = resume_reset(APPLYING, replace(IDLE, committed=committed, members=members))
    assert (record.state, record.commit) == (state, commit)


@given(st.lists(st.sampled_from(["die before record", "die before commit", "run", "read on"])))
def test_offsets_that_consumers_advanced_are_never_moved_back(story: list[str]) -> None:
    """The operator dies at every possible place while a consumer comes, reads to 7 and goes: once read on after a
    reset, the group's offset is never set back by the same reset."""
    wanted, row, finished = reset(), None, False
    committed, time_ms = 5, 100
    for chapter in story:
        if chapter == "read on":
            finished = finished or committed == 1
            committed, time_ms = 7, time_ms + 1
            continue
        now = replace(IDLE, committed={A0: committed}, committed_ms={A0: time_ms})
        todo = must_act(wanted, row)
        if todo == "nothing":
            continue
        record = begin_reset(wanted, now, {A0: 1}, row) if todo == "begin" else resume_reset(row or {}, now)
        if chapter == "die before record":
            continue
        if not record.same:
            row = row_of(wanted, record, "now")
        if chapter == "die before commit" or not record.commit:
            continue
        assert not finished, "set back a second time"
        committed, time_ms = record.moves[0].new, time_ms + 1
