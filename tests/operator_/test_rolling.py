from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ottla_operator.rolling import Finished, Hosted, Pod, Restart, Wait, next_step


def pods(*current: bool, unready: tuple[int, ...] = ()) -> list[Pod]:
    return [Pod(n, f"main-broker-{n}", f"uid-{n}", n not in unready, each) for n, each in enumerate(current)]


FULL = [Hosted("orders-0", (0, 1, 2), (0, 1, 2), 2)]


def test_nothing_to_do() -> None:
    assert next_step(pods(True, True, True), 3, FULL, 0) == Finished()


def test_the_controller_goes_last() -> None:
    old = pods(False, False, False)
    assert next_step(old, 3, FULL, 0) == Restart(
        old[1], "It is out of date, and no partition needs it right now."
    )
    last = pods(False, True, True)
    step = next_step(last, 3, FULL, 0)
    assert isinstance(step, Restart) and step.pod.broker == 0


def test_one_at_a_time() -> None:
    some = pods(False, False, True, unready=(2,))
    assert next_step(some, 3, FULL, 0) == Wait("main-broker-2 is not ready yet.")
    stopping = pods(False, False, True)
    stopping[2] = replace(stopping[2], deleting=True)
    assert isinstance(next_step(stopping, 3, FULL, 0), Wait)
    assert isinstance(next_step(pods(False, False), 3, FULL, 0), Wait), "a pod is missing"


def test_who_is_broken_and_old_goes_first() -> None:
    step = next_step(pods(False, False, False, unready=(2,)), 3, FULL, 0)
    assert isinstance(step, Restart) and step.pod.broker == 2


def test_never_below_min_isr() -> None:
    lagging = [Hosted("orders-0", (0, 1, 2), (1, 2), 2)]
    step = next_step(pods(True, False, False), 3, lagging, 0)
    assert isinstance(step, Wait) and "orders-0" in step.why
    assert isinstance(next_step(pods(True, False, False), 3, None, 0), Wait), "nobody knows"


def test_no_replica_to_spare() -> None:
    alone = [Hosted("logs-0", (1,), (1,), 1)]
    assert isinstance(next_step(pods(True, False, True), 3, alone, 0), Restart)
    tight = Hosted("logs-0", (1, 2), (1, 2), 2)
    assert isinstance(next_step(pods(True, False, True), 3, [tight], 0), Restart)
    assert isinstance(next_step(pods(True, False, True), 3, [replace(tight, isr=(1,))], 0), Wait)


partitions = st.lists(
    st.builds(
        lambda isr, min_isr: Hosted("t-0", (0, 1, 2), tuple(sorted(isr)), min_isr),
        st.sets(st.integers(0, 2), min_size=1),
        st.integers(1, 2),
    ),
    max_size=4,
)


@given(partitions, st.lists(st.booleans(), min_size=3, max_size=3), st.integers(0, 2))
def test_a_restart_never_takes_a_partition_below_min_isr(
    hosted: list[Hosted], current: list[bool], controller: int
) -> None:
    step = next_step(pods(*current), 3, hosted, controller)
    if not isinstance(step, Restart):
        return
    assert not step.pod.current
    for each in hosted:
        before, after = len(each.isr), len(set(each.isr) - {step.pod.broker})
        assert after >= each.min_isr or after == before
