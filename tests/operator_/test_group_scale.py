"""Scaling by lag: bounds, the stabilization window, no flapping, from zero, and what stands in the way."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from operator_.bodies import cluster, group
from operator_.twins import World
from ottla_operator import metrics
from ottla_operator.group_plan import SeenGroup
from ottla_operator.group_scale import IDLE_S, Decision, Observation, decide, remember
from ottla_operator.group_scaler import observation
from ottla_operator.groups import GroupLook
from ottla_operator.kube import KubeError, path_of
from ottla_operator.specs import GroupSpec, InvalidSpec, ScaleSpec

BY_RECORDS = ScaleSpec("Deployment", "billing", max=10, min=0, lag_per_replica=100, stabilization_s=60)
BY_TIME = replace(BY_RECORDS, lag_per_replica=None, lag_seconds=20)


def run(
    spec: ScaleSpec, lags: list[tuple[int, float | None, int]], *, start: int = 0, partitions: int = 8
) -> list[Decision]:
    """One observation every 5 s of (lag, seconds, records written since the last); each decision is executed."""
    history: list[Observation] = []
    replicas, written, made = start, 0, []
    for number, (lag, seconds, more) in enumerate(lags):
        written += more
        now = Observation(number * 5.0, replicas, lag, seconds, written, partitions)
        history = remember(history, now, spec.stabilization_s)
        made.append(decide(spec, history))
        replicas = made[-1].replicas
    return made


def counts(made: list[Decision]) -> list[int]:
    return [each.replicas for each in made]


IDLE = (0, 0.0, 0)


def test_from_zero_as_soon_as_there_is_lag_and_back_when_idle() -> None:
    made = counts(run(BY_RECORDS, [IDLE, (1, 0.1, 1), (250, 1.0, 250), *[IDLE] * 14]))
    assert made[:3] == [0, 1, 3]
    assert made[3:14] == [3] * 11, "a minute of stabilization"
    assert made[-1] == 0


def test_a_group_that_keeps_up_with_a_trickle_is_not_stopped() -> None:
    """The lag is 0 whenever it is looked at, and yet records arrive."""
    assert set(counts(run(BY_RECORDS, [(0, 0.0, 3)] * 60, start=2))[20:]) == {1}


@pytest.mark.parametrize(
    ("lag", "partitions", "replicas", "reason"),
    [
        (100_000, 4, 4, "LimitedByPartitions"),
        (100_000, 100, 10, "LimitedByMax"),
        (300, 100, 3, "AsRecommended"),
        (0, 0, 2, "NoPartitions"),
    ],
)
def test_limits_are_reported(lag: int, partitions: int, replicas: int, reason: str) -> None:
    (made,) = run(BY_RECORDS, [(lag, 1.0, lag)], start=2, partitions=partitions)
    assert (made.replicas, made.reason) == (replicas, reason)


def test_fewer_replicas_only_after_a_whole_window() -> None:
    made = run(BY_RECORDS, [(0, 0.0, 1)] * 13, start=5)
    assert counts(made)[:12] == [5] * 12, "an operator that has just started does not know the last minute"
    assert made[0].reason == "Stabilizing" and "60 s" in made[0].message
    assert made[12].replicas == 1


def test_a_gap_in_the_history_begins_the_window_again() -> None:
    old = [Observation(n * 5.0, 5, 0, 0.0, 7, 8) for n in range(20)]
    later = remember(old, Observation(500.0, 5, 0, 0.0, 7, 8), 60)
    assert decide(BY_RECORDS, later).replicas == 5


def test_lag_in_seconds_adds_replicas_in_steps_and_removes_them_one_by_one() -> None:
    late = counts(run(BY_TIME, [(9, 60.0, 9)] * 24, start=2))
    assert late[:3] == [3, 3, 3], "new members need time to show an effect"
    assert sorted(set(late)) == [3, 4, 6, 8], "never more than partitions"
    made = counts(run(BY_TIME, [(1, 12.0, 1)] * 5 + [(1, 1.0, 1)] * 40, start=4))
    assert made[:16] == [4] * 16
    assert [each for n, each in enumerate(made) if n and made[n - 1] != each] == [3, 2, 1], "one per window"


def test_unknown_seconds_start_one() -> None:
    assert counts(run(BY_TIME, [(5, None, 5)])) == [1]
    assert counts(run(BY_TIME, [(5, None, 5)] * 3, start=4)) == [4, 4, 4]


_SPECS = st.builds(
    lambda low, more, per, seconds, window: ScaleSpec(
        "Deployment", "x", max=max(1, low + more), min=low, lag_per_replica=per, lag_seconds=seconds,
        stabilization_s=window,
    ),
    st.integers(0, 5), st.integers(0, 20), st.none() | st.integers(1, 500), st.integers(1, 60),
    st.sampled_from([0, 5, 30, 120]),
)  # fmt: skip
_LAGS = st.lists(
    st.tuples(st.integers(0, 5000), st.none() | st.floats(0, 100), st.integers(0, 50)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(400), deadline=None)
@given(_SPECS, _LAGS, st.integers(0, 30), st.integers(0, 30))
def test_bounds_and_stabilization_hold_whatever_happens(
    spec: ScaleSpec, lags: list[tuple[int, float | None, int]], start: int, partitions: int
) -> None:
    made = counts(run(spec, lags, start=start, partitions=partitions))
    most = min(spec.max, partitions)
    for number, (replicas, (lag, _, _)) in enumerate(zip(made, lags, strict=True)):
        before = made[number - 1] if number else start
        if partitions == 0:
            assert replicas == before
            continue
        assert min(spec.min, most) <= replicas <= most, "K1"
        assert replicas >= 1 or lag == 0, "K3"
        if replicas < min(before, most) and spec.lag_per_replica is not None:
            window = lags[max(0, number - spec.stabilization_s // 5) : number + 1]
            asked = max(-(-each[0] // spec.lag_per_replica) for each in window)
            assert number * 5 >= spec.stabilization_s and replicas >= min(asked, most), "K2"
        if before > 0 and replicas == 0:
            assert number * 5 >= IDLE_S


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 3000), st.integers(0, 20), st.integers(1, 20))
def test_constant_lag_changes_replicas_once(lag: int, start: int, partitions: int) -> None:
    made = [start, *counts(run(BY_RECORDS, [(lag, 5.0, 1)] * 40, start=start, partitions=partitions))]
    changes = sum(1 for a, b in itertools.pairwise(made) if a != b)
    assert changes <= 1 + (start > min(partitions, BY_RECORDS.max))


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 60), st.integers(5, 40), st.integers(0, 20))
def test_no_flapping_under_a_steady_load(rate: int, capacity: int, burst: int) -> None:
    """Consumers that read `capacity` records per replica and second: directions change at most once per window."""
    lag, replicas, written, history, changes = burst * 100, 0, 0, [], []
    for number in range(200):
        written += rate * 5
        lag = max(0, lag + rate * 5 - replicas * capacity * 5)
        history = remember(history, Observation(number * 5.0, replicas, lag, None, written, 8), 60)
        after = decide(BY_RECORDS, history).replicas
        if after != replicas:
            changes.append((number * 5, after > replicas))
        replicas = after
    downs = [at for at, up in changes if not up]
    assert all(
        later - before >= 60
        for before, later in itertools.pairwise(downs)
        if _up_between(changes, before, later)
    )


def _up_between(changes: list[tuple[int, bool]], before: int, after: int) -> bool:
    return any(up and before < at < after for at, up in changes)


def test_only_topics_that_the_group_reads_count() -> None:
    seen = SeenGroup(
        "billing", "Empty", committed={("orders", 0): 3, ("former", 0): 0},
        ends={("orders", 0): 5, ("former", 0): 900}, seconds={("orders", 0): 2.0, ("former", 0): 999.0},
    )  # fmt: skip
    named = observation(0, GroupSpec.of(group(topics=["orders"])), seen, 1)
    assert (named.lag, named.lag_seconds, named.partitions, named.written) == (2, 2.0, 1, 5)
    assert observation(0, GroupSpec.of(group()), seen, 1).lag == 902


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ({"targetRef": {"name": "x"}, "max": 3}, "lagPerReplica or lagSeconds"),
        ({"targetRef": {"name": "x"}, "max": 1, "min": 2, "lagSeconds": 1}, "min"),
        ({"targetRef": {"name": "x", "kind": "Job"}, "max": 1, "lagSeconds": 1}, "Deployment"),
    ],
)
def test_specs_that_an_older_schema_accepted_are_refused(scale: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        GroupSpec.of(group(scale=scale))


# ------------------------------------------------------------------ looks

SCALE = {"targetRef": {"kind": "Deployment", "name": "worker"}, "min": 0, "max": 5, "lagPerReplica": 10}
PATH = path_of("apps/v1", "Deployment", "shop", "worker", "scale")
LAGGING = SeenGroup(
    "billing", "Empty", committed={("orders", 0): 5}, ends={("orders", n): 9 for n in range(4)}
)


@pytest.fixture
def world() -> World:
    made = World()
    made.put(cluster())
    made.brokers.seen_group = LAGGING
    made.kube.objects[PATH] = {
        "metadata": {"name": "worker", "resourceVersion": "7"},
        "spec": {"replicas": 0},
        "status": {"replicas": 0, "selector": "app=worker"},
    }
    return made


def scaling(world: World, name: str = "billing") -> tuple[str, str]:
    return world.condition("ConsumerGroup", name, "ScalingActive")


async def test_the_target_is_scaled_with_an_event_and_a_status(world: World) -> None:
    look = GroupLook(world.tools)
    delay_s = await look.look(world.put(group(scale=SCALE)))
    assert world.kube.objects[PATH]["spec"]["replicas"] == 4
    assert world.kube.events[-1] == (
        "ScaledUp",
        "Scaled Deployment/worker from 0 to 4: lag is 31 records.",
    )
    assert scaling(world) == ("True", "AsRecommended")
    status = world.status("ConsumerGroup", "billing")["scale"]
    assert (status["target"], status["replicas"], status["desired"]) == ("Deployment/worker", 0, 4)
    assert "lastScaleTime" in status and delay_s == 5.0
    assert metrics.GROUP_REPLICAS_DESIRED.labels("shop", "billing")._value.get() == 4
    # The next reconciliation finds it as it should be.
    events = len(world.kube.events)
    await look.look(("shop", "billing"))
    assert len(world.kube.events) == events
    assert world.status("ConsumerGroup", "billing")["scale"]["lastScaleTime"] == status["lastScaleTime"]
    # No scale any more: the target stays as it is.
    await look.look(world.put(group()))
    assert "scale" not in world.status("ConsumerGroup", "billing")
    assert world.kube.objects[PATH]["spec"]["replicas"] == 4


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("missing", "TargetMissing"),
        ("autoscaler", "OtherAutoscaler"),
        ("ottla's own", "NotAConsumer"),
        ("older group", "Conflict"),
        ("same group", "Conflict"),
        ("forbidden", "Forbidden"),
    ],
)
async def test_what_must_not_be_scaled_is_left_alone(world: World, why: str, reason: str) -> None:
    if why == "missing":
        del world.kube.objects[PATH]
    if why == "autoscaler":
        world.kube.put(
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "other", "namespace": "shop"},
                "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "worker"}},
            }
        )
    if why == "ottla's own":
        world.kube.objects[PATH]["status"]["selector"] = "ottla.dev/cluster=main,x=y"
    if why in ("older group", "same group"):
        first = group("first", groupId="billing" if why == "same group" else "first", scale=SCALE)
        first["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
        world.put(first)
    if why == "forbidden":
        world.kube.refusals[PATH] = [KubeError(403, "no")]
    await GroupLook(world.tools).look(world.put(group(scale=SCALE)))
    assert scaling(world) == ("False", reason)
    assert world.kube.objects.get(PATH, {"spec": {"replicas": 0}})["spec"]["replicas"] == 0
    assert world.condition("ConsumerGroup", "billing") == ("True", "NoMembers"), "the group itself is well"


async def test_a_change_by_another_client_in_between_is_tried_again(world: World) -> None:
    world.kube.refusals[PATH] = [KubeError(409, "conflict")]
    look = GroupLook(world.tools)
    await look.look(world.put(group(scale=SCALE)))
    assert world.kube.objects[PATH]["spec"]["replicas"] == 0 and not world.kube.events
    await look.look(("shop", "billing"))
    assert world.kube.objects[PATH]["spec"]["replicas"] == 4


async def test_a_paused_resource_scales_nothing(world: World) -> None:
    body = group(scale=SCALE)
    body["metadata"]["annotations"] = {"ottla.dev/paused": "true"}
    await GroupLook(world.tools).look(world.put(body))
    assert world.kube.objects[PATH]["spec"]["replicas"] == 0
