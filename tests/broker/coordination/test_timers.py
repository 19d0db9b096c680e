"""Deadlines by key, against a dumb twin that looks at all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_broker.coordination.timers import Timers


def test_due_in_the_order_of_their_deadlines() -> None:
    timers = Timers()
    for key, at in (("c", 30), ("a", 10), ("b", 20)):
        timers.set(key, at)
    assert timers.due(9) == []
    assert timers.due(25) == ["a", "b"]
    assert timers.due(25) == []
    assert timers.next_ms() == 30


def test_a_deadline_moves_both_ways() -> None:
    timers = Timers()
    timers.set("later", 10)
    timers.set("later", 50)
    timers.set("sooner", 90)
    timers.set("sooner", 20)
    assert timers.due(49) == ["sooner"]
    assert timers.due(50) == ["later"]
    assert len(timers) == 0


def test_polling_at_the_given_time_never_spins() -> None:
    """Each look either finds a deadline or moves on in time."""
    timers, now, looks = Timers(), 0, 0
    for number in range(100):
        timers.set(number, 1000 + 7 * number)
    found: list[object] = []
    while (next_ms := timers.next_ms()) is not None:
        assert looks == 0 or next_ms > now
        now, looks = next_ms, looks + 1
        found += timers.due(now)
    assert found == list(range(100))
    assert looks <= 200


def test_heartbeats_leave_no_garbage_behind() -> None:
    timers = Timers()
    for now in range(10_000):
        timers.set("session", now + 1000)
        timers.set(("join", now), now + 5)
        timers.cancel(("join", now))
    assert len(timers._heap) < 200


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("due"), st.just(0), st.integers(0, 10)),
    ),
    max_size=60,
)


@given(Steps)
@settings(max_examples=examples(200), deadline=None)
def test_as_a_dict_of_all_deadlines(steps: list[tuple[str, int, int]]) -> None:
    timers, twin, now = Timers(), dict[int, int](), 0
    for step, key, number in steps:
        if step == "set":
            timers.set(key, now + number)
            twin[key] = now + number
        elif step == "cancel":
            timers.cancel(key)
            twin.pop(key, None)
        else:
            now += number
            late = {k: at for k, at in twin.items() if at <= now}
            found = timers.due(now)
            assert sorted(found) == sorted(late), step
            assert [late[k] for k in found] == sorted(late.values())  # type: ignore[index]
            twin = {k: at for k, at in twin.items() if at > now}
        assert len(timers) == len(twin)
        next_ms = timers.next_ms()
        assert (next_ms is None) == (not twin)
        if next_ms is not None:
            assert next_ms <= min(twin.values()), "somebody would be woken too late"
            assert next_ms > now or min(twin.values()) <= now or step != "due", "the owner would spin"
