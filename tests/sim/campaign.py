"""One run of a world: start, faults under load, healing, and the verdict. Used by the tests and by `python -m sim`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ottla_broker.partition.partition import ACKS_ALL
from ottla_core.errors import RequestError
from sim.checkers import POLL_S, spot_of
from sim.faults import Faults
from sim.shape import PLAIN, Shape, drawn
from sim.workload import Workload
from sim.world import Unreachable, Violation, World

FAULTS_S = 14.0
#: After the last fault everything must be as it should be within so long.
CONVERGE_S = 40.0
_START_S = 30.0

Script: TypeAlias = Callable[["Campaign"], Awaitable[None]]


@dataclass(frozen=True)
class Verdict:
    seed: int
    failure: Violation | None
    virtual_s: float
    digest: str
    trace: tuple[str, ...]
    #: How much has happened: a run in which nothing did proves nothing.
    acknowledged: int
    committed: int
    epochs: int
    transactions: int
    #: Records that members of groups have polled, and commits of theirs that were confirmed.
    polled: int
    commits: int
    faults: dict[str, int]


class Campaign:
    def __init__(
        self,
        seed: int,
        faults_s: float = FAULTS_S,
        script: Script | None = None,
        nemesis: str | None = None,
        shape: Shape = PLAIN,
    ) -> None:
        """`script` is told instead of what the faults would draw; `nemesis` is all that they draw."""
        self.world = World(seed, shape)
        self.workload = Workload(self.world)
        self.faults = Faults(self.workload, nemesis)
        self._faults_s = faults_s
        self._script = script
        # A story counts on the replicas that it begins with.
        self.workload.is_settling = script is not None

    def run(self) -> Verdict:
        world, failure = self.world, None
        try:
            world.run(self._main())
        except Violation as violation:
            failure = violation
        checkers = world.checkers
        return Verdict(
            world.seed,
            failure,
            world.loop.time(),
            world.digest,
            tuple(world.trace),
            len(checkers.acknowledged),
            sum(checkers.committed_end.values()),
            len(checkers._led),
            len(checkers.transactions),
            checkers.groups.polled_records,
            checkers.groups.confirmed_commits,
            dict(self.faults.counts),
        )

    async def _main(self) -> None:
        world = self.world
        for machine in world.machines.values():
            machine.start()
        world.loop.spawn(None, self._watch())
        await self.until(lambda: len(world.serving) == len(world.machines), _START_S, "all brokers serve")
        await self.workload.create_topics()
        load = world.loop.spawn(None, self.workload.run())
        if self._script is not None:
            await self._script(self)
        else:
            await self.faults.run(world.clock.monotonic() + self._faults_s)
        await self.faults.heal()
        world.note("healed")
        self.workload.is_settling = True
        await self.until(self._is_converged, CONVERGE_S, "all replicas are in sync, and moves complete")
        await self.until(self._is_shared_out, CONVERGE_S, "each partition has one owner in each group")
        self.workload.is_over = True
        await load
        await self._last_words()

    async def _watch(self) -> None:
        while True:
            await self.world.clock.sleep(POLL_S)
            self.world.checkers.poll()

    async def _last_words(self) -> None:
        """I9: everything can be written and read again; then I5 and I8."""
        world = self.world
        waiting = dict.fromkeys(spot.tp for spot in self.workload.open_partitions())
        deadline = world.clock.monotonic() + CONVERGE_S
        while waiting:
            for tp in list(waiting):
                # A wish that got no answer may be carried out late, and delete a topic here.
                exists = any(spot.tp == tp for spot in self.workload.open_partitions())
                if not exists or await self.workload.write(tp, ACKS_ALL):
                    del waiting[tp]
            if world.clock.monotonic() > deadline:
                raise Violation(
                    f"I9 no write to {list(waiting)} in {CONVERGE_S:g} s after the faults; {self.picture()}"
                )
        await self.until(self._is_same, CONVERGE_S, "all replicas have the same")
        await self.until(self._is_quiet, CONVERGE_S, "no transaction is open (I17)")
        world.checkers.poll()
        try:
            everything = await self.workload.everything(CONVERGE_S)
            world.checkers.check_end(everything)
            if world.shape.is_transactional or world.shape.has_groups:
                committed = await self.workload.everything(CONVERGE_S, read_committed=True)
                world.checkers.transactions.check_end(committed)
                world.checkers.groups.check_end(everything, committed, world.checkers.trimmed)
        except (RequestError, Unreachable) as error:
            raise Violation(f"I9 cannot be read after the faults: {error!r}") from error

    async def until(self, holds: Callable[[], bool], limit_s: float, what: str) -> None:
        clock = self.world.clock
        deadline = clock.monotonic() + limit_s
        while not holds():
            if clock.monotonic() > deadline:
                raise Violation(f"I9 not within {limit_s:g} s: {what}; {self.picture()}")
            await clock.sleep(0.05)

    def _is_converged(self) -> bool:
        states = self.world.states().values()
        return all(
            set(s.isr) == set(s.replicas) and s.leader in s.isr and not s.elr and s.wanted == s.replicas
            for s in states
        )

    def _is_shared_out(self) -> bool:
        return all(group.is_shared_out() for group in self.workload.groups)

    def _is_same(self) -> bool:
        for spot in self.world.states():
            copies = [
                p for process in self.world.processes for p in process.partitions() if spot_of(p) == spot
            ]
            if len({p.log.end_offset for p in copies} | {p.high_watermark for p in copies}) != 1:
                return False
        return self._is_converged()

    def _is_quiet(self) -> bool:
        """No replica has a transaction open, and read_committed reads up to the high watermark."""
        return all(
            partition.stable_offset() == partition.high_watermark
            for process in self.world.processes
            for partition in process.partitions()
        )

    def picture(self) -> str:
        shown = [
            f"{tp}: {s.leader}@{s.leader_epoch} isr={s.isr} elr={s.elr} torn={s.torn}"
            for tp, s in self.world.states().items()
        ]
        for process in self.world.processes:
            for p in process.partitions():
                role = "leads" if p.is_leader else "follows" if p.following else "idle"
                shown.append(
                    f"{process.place} {p.tp} {role} {p.leader_epoch} end={p.log.end_offset} hw={p.high_watermark}"
                )
        return "; ".join((*shown, *(group.picture() for group in self.workload.groups)))


def run_seed(
    seed: int,
    faults_s: float = FAULTS_S,
    nemesis: str | None = None,
    shape: Shape | None = None,
    *,
    is_transactional: bool = False,
    has_groups: bool = False,
) -> Verdict:
    """`is_transactional`, `has_groups`: whatever the seed draws."""
    shape = shape or drawn(seed)
    if is_transactional or has_groups:
        shape = replace(
            shape,
            is_transactional=is_transactional or shape.is_transactional,
            has_groups=has_groups or shape.has_groups,
        )
    return Campaign(seed, faults_s, nemesis=nemesis, shape=shape).run()
