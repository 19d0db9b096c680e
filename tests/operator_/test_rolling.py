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
        old[1], "It is out of date, and all partitions have enough other in-sync replicas."
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


def test_broken_outdated_pods_are_rolled_first() -> None:
    step = next_step(pods(False, False, False, unready=(2,)), 3, FULL, 0)
    assert isinstance(step, Restart) and step.pod.broker == 2


def test_a_serving_pod_with_a_failed_probe_is_not_broken() -> None:
    """0 was just replaced and catches up; 1 is slow to answer the kubelet, and one of the two that are left."""
    some = pods(True, False, False, unready=(0, 1))
    left = [Hosted("orders-0", (0, 1, 2), (1, 2), 2)]
    step = next_step(some, 3, left, 2, alive=(0, 1, 2))
    assert step == Wait(
        "main-broker-1 is not ready, but its replicas are needed: "
        "orders-0 would have 1 in-sync replicas, below its min.insync.replicas of 2."
    )
    assert isinstance(next_step(some, 3, left, 2, alive=(0, 2)), Restart), "it is gone, whatever the ISR says"
    assert isinstance(next_step(some, 3, FULL, 2, alive=(0, 1, 2)), Restart), "nobody needs it"
    assert isinstance(next_step(some, 3, None, 2), Restart), "nobody answers: the new version may be the cure"


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


@given(
    partitions,
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 2),
    st.sets(st.integers(0, 2)).map(tuple),
)
def test_a_restart_never_takes_a_partition_below_min_isr(
    hosted: list[Hosted], current: list[bool], controller: int, unready: tuple[int, ...]
) -> None:
    step = next_step(pods(*current, unready=unready), 3, hosted, controller, alive=(0, 1, 2))
    if not isinstance(step, Restart):
        return
    assert not step.pod.current
    for each in hosted:
        before, after = len(each.isr), len(set(each.isr) - {step.pod.broker})
        assert after >= each.min_isr or after == before
