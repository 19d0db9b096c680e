"""Turns of the event loop: who runs, for how long, in which order. Clock and loop are played by the test."""

from __future__ import annotations

from collections.abc import Callable

from ottla_broker.scheduler import SLICE_S, TURN_S, Scheduler

STEP_S = 0.0001


class Loop:
    """A clock that only moves when work is done, and callbacks of the next turn."""

    def __init__(self) -> None:
        self.now = 100.0
        self.turns: list[float] = []
        self._later: list[Callable[[], None]] = []
        self.scheduler = Scheduler(lambda: self.now, self._later.append, self.turns.append)

    @property
    def is_idle(self) -> bool:
        return not self._later

    def turn(self) -> float:
        """One iteration; gives the time it took."""
        start = self.now
        due, self._later[:] = self._later[:], []
        for call in due:
            call()
        return self.now - start


class Job:
    """So many steps of a tenth of a millisecond (or `step_s`)."""

    def __init__(self, loop: Loop, name: str, steps: int, *, urgent: bool = False, step_s: float = STEP_S):
        self.loop, self.name, self.left = loop, name, steps
        self.urgent, self.step_s = urgent, step_s
        self.visits: list[int] = []

    def queue(self) -> None:
        self.loop.scheduler.queue(self, urgent=self.urgent)

    def run(self, until: float) -> None:
        done = 0
        while self.left:
            self.left -= 1
            done += 1
            self.loop.now += self.step_s
            if self.loop.now >= until:
                break
        self.visits.append(done)
        if self.left:
            self.queue()


def _finish(loop: Loop, turns_max: int = 10_000) -> int:
    for number in range(turns_max):
        if loop.is_idle:
            return number
        loop.turn()
    raise AssertionError("it does not end")


def test_work_that_arrives_first_runs_at_once_until_the_end_of_the_turn() -> None:
    loop = Loop()
    assert loop.scheduler.admit() == loop.now + TURN_S
    loop.now += TURN_S / 2
    loop.scheduler.done()
    assert loop.scheduler.admit() is not None, "half of the turn is left"
    loop.now += TURN_S
    loop.scheduler.done()
    assert loop.scheduler.admit() is None
    _finish(loop)
    assert [round(used, 6) for used in loop.turns] == [round(1.5 * TURN_S, 6)]
    assert loop.scheduler.admit() is not None, "the next turn has time again"


def test_no_connection_overtakes_a_waiting_one() -> None:
    loop = Loop()
    Job(loop, "flood", 100).queue()
    assert loop.scheduler.is_busy
    assert loop.scheduler.admit() is None
    _finish(loop)
    assert not loop.scheduler.is_busy


def test_a_turn_is_bounded_however_many_wait() -> None:
    loop = Loop()
    jobs = [Job(loop, str(n), 200) for n in range(400)]
    for job in jobs:
        job.queue()
    while not loop.is_idle:
        assert loop.turn() <= TURN_S + 2 * STEP_S
    assert all(job.left == 0 for job in jobs)
    assert max(loop.turns) <= TURN_S + 2 * STEP_S


def test_one_request_waits_for_one_slice_of_each_flood() -> None:
    loop = Loop()
    floods = [Job(loop, str(n), 100_000) for n in range(10)]
    for flood in floods:
        flood.queue()
    loop.turn()
    single = Job(loop, "single", 1)
    single.queue()
    asked = loop.now
    while single.left:
        loop.turn()
    assert loop.now - asked <= len(floods) * (SLICE_S + STEP_S) + 2 * TURN_S
    assert all(max(flood.visits) * STEP_S <= SLICE_S + STEP_S for flood in floods)


def test_a_single_connection_gets_the_whole_turn() -> None:
    loop = Loop()
    job = Job(loop, "alone", 100)
    job.queue()
    loop.turn()
    assert job.visits == [round(TURN_S / STEP_S)]


def test_urgent_work_is_served_before_all_bulk_work() -> None:
    loop = Loop()
    for number in range(400):
        Job(loop, str(number), 1000).queue()
    loop.turn()
    heartbeat = Job(loop, "heartbeat", 1, urgent=True)
    heartbeat.queue()
    asked = loop.now
    loop.turn()
    assert heartbeat.left == 0
    assert loop.now - asked <= TURN_S + 2 * STEP_S


def test_a_flood_of_urgent_work_does_not_stop_bulk_work() -> None:
    loop = Loop()
    slow = Job(loop, "slow", 100_000, urgent=True, step_s=3 * TURN_S)
    quick = Job(loop, "quick", 100_000, urgent=True)
    bulk = Job(loop, "bulk", 5)
    for job in (slow, quick, bulk):
        job.queue()
    for _ in range(5):
        loop.turn()
    assert bulk.left == 0
    assert slow.visits


def test_what_is_forgotten_does_not_run() -> None:
    loop = Loop()
    gone, stays = Job(loop, "gone", 1), Job(loop, "stays", 1)
    for job in (gone, stays):
        job.queue()
        job.queue()
    loop.scheduler.forget(gone)
    _finish(loop)
    assert (gone.visits, stays.visits) == ([], [1])
