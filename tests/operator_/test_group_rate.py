"""Scaling under a steady load: what did not keep up is not tried again, and an operator's restart forgets nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from operator_.bodies import group
from operator_.test_group_scale import BY_RECORDS, BY_TIME, LAGGING, PATH, SCALE
from operator_.test_group_scale import world as world
from operator_.twins import World
from ottla_operator.group_plan import SeenGroup
from ottla_operator.group_rate import FORGET_S, Quiet, TooFast, needed, quiet, rate_of, tighter
from ottla_operator.group_scale import Decision, Memory, Observation, decide, remember
from ottla_operator.group_scaler import memory_facts, memory_in
from ottla_operator.groups import GroupLook
from ottla_operator.specs import ScaleSpec

STEP_S = 5


class Load:
    """A group whose replicas read `capacity` records per second each, and an operator that looks every 5 s."""

    def __init__(self, spec: ScaleSpec, capacity: int, *, partitions: int = 8) -> None:
        self.spec, self.capacity, self.partitions = spec, capacity, partitions
        self.now_s, self.lag, self.replicas, self.written = 0, 0, 1, 0
        self.history: list[Observation] = []
        self.memory = Memory()
        #: (seconds, replicas) of each change.
        self.changes: list[tuple[int, int]] = []

    def run(self, rate: int, seconds: int) -> Decision:
        for _ in range(seconds // STEP_S):
            self.now_s += STEP_S
            self.written += rate * STEP_S
            self.lag = max(0, self.lag + (rate - self.replicas * self.capacity) * STEP_S)
            age = self.lag / rate if rate else 0.0
            seen = Observation(float(self.now_s), self.replicas, self.lag, age, self.written, self.partitions)
            self.history = remember(self.history, seen, self.spec.stabilization_s)
            made = decide(self.spec, self.history, self.memory, self.now_s * 1000)
            self.memory = memory_in(memory_facts(made.memory))  # as if it were a new operator each time
            if made.replicas != self.replicas:
                self.changes.append((self.now_s, made.replicas))
            self.replicas = made.replicas
        return made

    def restart(self) -> None:
        self.history = []

    def downs_after(self, at_s: int) -> list[int]:
        pairs = itertools.pairwise([(0, 1), *self.changes])
        return [at for (_, before), (at, after) in pairs if after < before and at >= at_s]


@pytest.mark.parametrize("spec", [BY_RECORDS, BY_TIME], ids=["records", "seconds"])
def test_a_group_that_needs_all_of_its_replicas_keeps_them(spec: ScaleSpec) -> None:
    """Without a memory of rates it went down after each window, and up again."""
    load = Load(spec, capacity=100)
    load.run(250, 600)
    settled = load.now_s
    made = load.run(250, 1800)
    assert load.downs_after(settled) == []
    assert load.replicas >= 3 and load.lag == 0
    assert made.reason == "Stabilizing" and "did not keep up with 250 records/s" in made.message


def test_fewer_replicas_come_when_the_rate_falls() -> None:
    load = Load(BY_RECORDS, capacity=100)
    load.run(450, 900)
    assert load.replicas >= 5
    load.run(50, 300)
    assert load.replicas == 1
    load.run(0, 120)
    assert load.replicas == 0


def test_faster_consumers_are_noticed_after_a_while() -> None:
    load = Load(BY_RECORDS, capacity=100)
    load.run(250, 600)
    load.capacity = 1000
    load.run(250, int(FORGET_S) + 120)
    assert load.replicas == 1


def test_an_old_backlog_says_nothing_about_rates() -> None:
    """One replica catches up with it, more slowly than the spec wants."""
    load = Load(BY_RECORDS, capacity=100)
    load.run(10, 60)
    load.lag = 100_000
    load.run(10, 10)
    assert load.replicas == 8 and load.memory.too_fast is None
    load.run(10, 600)
    assert load.replicas == 1


def test_replicas_that_do_not_run_say_nothing_about_rates() -> None:
    """They wait for a node, or crash: nothing is committed."""
    load = Load(BY_RECORDS, capacity=0)
    load.run(10, 120)
    assert load.replicas == 8 and load.memory.too_fast is None
    load.capacity = 100
    load.run(10, 600)
    assert load.replicas == 1


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 700), st.integers(20, 150))
def test_any_steady_load_settles(rate: int, capacity: int) -> None:
    """After some windows the number of replicas stays, as long as the memory lasts, and suffices if it can."""
    load = Load(BY_RECORDS, capacity)
    load.run(rate, 1500)
    settled = load.now_s
    load.run(rate, 1500)
    assert load.downs_after(settled) == []
    assert load.replicas * capacity >= min(rate, 8 * capacity)


# ------------------------------------------------------------------ restarts


def test_a_window_that_another_operator_began_counts() -> None:
    load = Load(BY_RECORDS, capacity=1000)
    load.lag = 5000
    load.run(1, 5)
    load.replicas, load.lag = 5, 0
    load.run(1, 40)
    assert load.replicas == 5 and load.memory.quiet is not None
    load.restart()
    load.run(1, 25)
    assert load.replicas == 5, "it looks for half a minute itself"
    load.run(1, 20)
    assert load.replicas == 1


def test_the_most_that_was_recommended_before_a_restart_counts() -> None:
    history = [Observation(n * 5.0, 5, 0, 0.0, 7 + n, 8) for n in range(8)]
    before = Memory(quiet=Quiet(0, 3))
    assert decide(BY_RECORDS, history, before, 61_000).replicas == 3
    assert decide(BY_RECORDS, history, before, 59_000).replicas == 5
    assert decide(BY_RECORDS, history[:6], before, 61_000).replicas == 5


async def test_the_memory_is_in_the_status(world: World) -> None:
    """An operator that starts again reads it there."""
    busy = SeenGroup(
        "billing", "Empty", committed={("orders", 0): 5}, ends={("orders", n): 9 for n in range(4)}
    )
    world.kube.objects[PATH]["spec"]["replicas"] = 1
    world.brokers.seen_group = busy
    key = world.put(group(scale={**SCALE, "max": 1}))
    await GroupLook(world.tools).look(key)
    look = GroupLook(world.tools)
    for more in range(1, 4):
        world.clock.now += 5
        grown = {("orders", n): 9 + 10 * more for n in range(4)}
        read = {("orders", 0): 5 + more}
        world.brokers.seen_group = SeenGroup("billing", "Empty", committed=read, ends=grown)
        world.sync("ConsumerGroup", "billing")
        await look.look(key)
    scale = world.status("ConsumerGroup", "billing")["scale"]
    assert scale["notSustained"]["recordsPerSecondAndReplica"] == 8
    world.brokers.seen_group = SeenGroup("billing", "Empty", committed=grown, ends=grown)
    world.clock.now += 5
    world.kube.objects[PATH]["spec"]["replicas"] = 3
    await GroupLook(world.tools).look(key)
    scale = world.status("ConsumerGroup", "billing")["scale"]
    assert scale["notSustained"]["recordsPerSecondAndReplica"] == 8, "kept by the next operator"
    assert LAGGING.lag_of(("orders", 0)) == 4


# ------------------------------------------------------------------ parts


def test_how_many_replicas_a_rate_needs() -> None:
    known = TooFast(125.0, 0)
    assert [needed(known, rate) for rate in (0, 100, 125, 250, 500)] == [0, 1, 2, 3, 5]
    assert needed(known, 120) == 2, "nearly the same rate"
    assert needed(None, 500) == 0


def test_the_lower_bound_wins() -> None:
    low, high = TooFast(10, 1), TooFast(20, 2)
    assert tighter(low, high) == tighter(high, low) == low
    assert tighter(None, high) == tighter(high, None) == high
    assert tighter(TooFast(10, 1), TooFast(10, 9)) == TooFast(10, 9)


def test_rates() -> None:
    assert rate_of([(0.0, 10), (5.0, 20), (10.0, 60)]) == 5.0
    assert rate_of([(3.0, 10)]) == 0.0
    assert rate_of([(0.0, 10), (5.0, 4)]) == 0.0, "a topic was deleted"


def test_quiet_begins_and_ends() -> None:
    first = quiet(None, 1000, 2, 5)
    assert first == Quiet(1000, 2)
    assert quiet(first, 2000, 4, 5) == Quiet(1000, 4)
    assert quiet(first, 3000, 5, 5) is None


def test_a_memory_survives_its_status() -> None:
    memory = Memory(TooFast(125.0, 60_000), Quiet(90_000, 2))
    assert memory_in(memory_facts(memory)) == memory
    assert memory_in(memory_facts(Memory())) == memory_in(None) == Memory()
