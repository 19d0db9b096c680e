"""What goes wrong in a world, drawn from the seed, and the budget: what the design claims to survive.

Nothing that keeps the page cache is ever refused: kills, stops, cuts, delays and lost replies may hit any number of
brokers at the same time, and the store's leases and history may go at any moment. Data loss has a budget:

* B1: power may be lost on a broker (the unsynced tail of all its files goes) while, of every partition that counts on
  it and whose topic does not ask for `flush.before.ack`, another of ISR and ELR has lost nothing. Topics that do ask
  survive the loss of power on all brokers at once.
* B2: a disk may be lost (all of it) on the same condition, for every topic; one that asks has lost nothing with power.
* B3: the store itself forgets nothing that it has confirmed.

That list is the durability claim (docs/durability.md); unclean election is off.
"""

from __future__ import annotations

import errno
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ottla_broker.controller.election import on_record, safe_replicas
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.controller import CONTROLLER
from sim.loop import chance_for
from sim.nemeses import Fault, Nemeses

if TYPE_CHECKING:
    from sim.workload import Workload
    from sim.world import Machine, World

_AT_ONCE_MAX = 3
_WRITE_ERRORS = (("append", errno.ENOSPC), ("append", errno.EIO), ("sync", errno.EIO))


class Budget:
    def __init__(self, world: World) -> None:
        self._world = world

    def may_lose(self, machine: Machine, *, disk: bool) -> bool:
        """B1, or B2 for the whole disk."""
        self._forgive()
        for spot, state in self._world.states().items():
            flushed = self._world.config_of(spot).get("flush.before.ack") == "true"
            if flushed and not disk:
                continue
            counted_on = machine.id in on_record(state)
            if counted_on and not any(
                self._is_good(r, flushed)
                for r in safe_replicas(state)
                if r != machine.id and r not in state.torn
            ):
                return False
        return True

    def _is_good(self, broker_id: int, flushed: bool) -> bool:
        machine = self._world.machines[broker_id]
        return not (machine.is_emptied if flushed else machine.is_torn)

    def _forgive(self) -> None:
        """Once the controller has admitted a life after the loss, sets no longer count on what was lost."""
        for machine in self._world.machines.values():
            process = machine.process
            if machine.is_torn and process is not None and process.is_serving:
                machine.is_torn = not self._world.is_admitted(process)
                machine.is_emptied = machine.is_emptied and machine.is_torn


class Faults:
    def __init__(self, workload: Workload, only: str | None = None) -> None:
        """`only` names the one nemesis that is drawn again and again, one at a time."""
        world = self._world = workload.world
        self._chance = chance_for(world.seed, "faults")
        self._budget = Budget(world)
        self._under_way = 0
        self.counts: dict[str, int] = {}
        self._at_once_max = _AT_ONCE_MAX if only is None else 1
        nemeses = Nemeses(workload, self._chance).kinds
        self._kinds: list[tuple[str, Fault]] = [
            ("kill", self._kill),
            ("kill", self._kill),
            ("double", self._double),
            ("double", self._double),
            ("blackout", self._blackout),
            ("power", self._power),
            ("disk", self._disk),
            ("stop", self._stop),
            ("pause", self._pause),
            ("pause", self._pause),
            ("isolate", self._isolate),
            ("isolate", self._isolate),
            ("one-way", self._one_way),
            ("store", self._store),
            ("outage", self._outage),
            ("etcd election", self._etcd_election),
            ("mute", self._mute),
            ("controller", self._controller),
            ("write error", self._write_error),
            ("replies", self._replies),
            ("replies", self._replies),
            ("late", self._late),
            ("lease", self._lease),
            ("reset", self._reset),
            ("clog", self._clog),
            ("history", self._history),
            *([("blackout", self._blackout)] * 4 if world.is_flushed else []),
            *([("clock", self._clock)] * 3 if world.shape.skew_ms else []),
            *nemeses.items(),
        ]
        if only is not None:
            self._kinds = [(only, nemeses[only])]

    async def run(self, until: float) -> None:
        world, chance = self._world, self._chance
        while world.clock.monotonic() < until:
            await world.clock.sleep(0.1 + chance.fraction() * 0.9)
            name, fault = self._kinds[chance.below(len(self._kinds))]
            machine = world.machines[1 + chance.below(len(world.machines))]
            seconds = 0.05 + chance.fraction() ** 2 * 5
            if self._under_way < self._at_once_max:
                # Counted before its task runs: healing must wait for one that was started in the last turn, too.
                self._under_way += 1
                world.loop.spawn(None, self._do(name, fault(machine, seconds), machine, seconds))

    async def _do(self, name: str, work: Coroutine[Any, Any, bool], machine: Machine, seconds: float) -> None:
        self._world.note(f"fault {name} of {machine.id} for {seconds:.3f} s")
        try:
            if await work:
                self.counts[name] = self.counts.get(name, 0) + 1
        finally:
            self._under_way -= 1

    async def heal(self) -> None:
        """All is well again: wait until every fault has undone itself, then start who is not there."""
        while self._under_way:
            await self._world.clock.sleep(0.1)
        for machine in self._world.machines.values():
            machine.power_on()
            machine.start()

    # ------------------------------------------------------------------ processes

    async def _kill(self, machine: Machine, seconds: float) -> bool:
        if machine.process is None:
            return False
        machine.kill()
        # Half of them are back before anybody can have noticed.
        await self._world.clock.sleep(seconds if self._chance.below(2) else seconds * 0.005)
        machine.start()
        return True

    async def _double(self, machine: Machine, seconds: float) -> bool:
        """A broker dies, and who would have to deal with it is hit in the middle of that."""
        entry = self._world.etcd.entries.get(CONTROLLER.key)
        if machine.process is None or entry is None:
            return False
        other = self._world.machines[CONTROLLER.decode(entry).broker_id]
        machine.kill()
        await self._world.clock.sleep(self._chance.fraction() * 0.15)
        second = (self._pause, self._lease, self._isolate, self._store, self._paused_out)[
            self._chance.below(5)
        ]
        await second(other, seconds)
        machine.start()
        return True

    async def _controller(self, machine: Machine, seconds: float) -> bool:
        """Stop whoever is controller, its lease alive or not (rules 14 to 17)."""
        entry = self._world.etcd.entries.get(CONTROLLER.key)
        if entry is None:
            return False
        other = self._world.machines[CONTROLLER.decode(entry).broker_id]
        return await (self._pause if self._chance.below(2) else self._paused_out)(other, seconds)

    async def _write_error(self, machine: Machine, seconds: float) -> bool:
        """A log cannot be written or synced once: its directory is offline until the process is started again.

        A sync that fails is final: what it had to write can be read on, and no later one writes it.
        """
        if machine.process is None:
            return False
        operation, code = _WRITE_ERRORS[self._chance.below(len(_WRITE_ERRORS))]
        machine.disk.fail(operation, ".log", code)
        await self._world.clock.sleep(seconds * 0.5)
        return await self._kill(machine, seconds * 0.2)

    async def _paused_out(self, machine: Machine, seconds: float) -> bool:
        """Stopped, and its lease gone meanwhile, so that another takes its place at once."""
        await self._lease(machine, seconds)
        return await self._pause(machine, 0.2 + seconds)

    async def _blackout(self, machine: Machine, seconds: float) -> bool:
        """Power is lost everywhere at once, where every topic asked for flushes (B1)."""
        machines = list(self._world.machines.values())
        if not self._world.is_flushed or not all(m.is_host_up for m in machines):
            return False
        for each in machines:
            each.lose_power()
        for each in machines:
            await self._return(each, seconds * self._chance.fraction() * 0.3)
        return True

    async def _clock(self, machine: Machine, seconds: float) -> bool:
        """Its wall clock is set again; nothing guarantees that it is right, or goes forward only."""
        machine.skew_ms = self._world.drawn_skew_ms()
        return True

    async def _stop(self, machine: Machine, seconds: float) -> bool:
        machine.stop_gracefully()
        return True

    async def _pause(self, machine: Machine, seconds: float) -> bool:
        process = machine.process
        if process is None or process.place.is_stopped:
            return False
        process.place.is_stopped = True
        await self._world.clock.sleep(seconds)
        if not process.place.is_dead:
            self._world.note(f"{process.place} goes on")
            self._world.loop.resume(process.place)
        return True

    async def _power(self, machine: Machine, seconds: float) -> bool:
        if self._world.is_flushed and self._chance.below(2):
            return await self._blackout(machine, seconds)
        if not machine.is_host_up or not self._budget.may_lose(machine, disk=False):
            return False
        machine.lose_power()
        await self._return(machine, seconds)
        return True

    async def _disk(self, machine: Machine, seconds: float) -> bool:
        if not machine.is_host_up or not self._budget.may_lose(machine, disk=True):
            return False
        machine.lose_disk()
        await self._return(machine, seconds)
        return True

    async def _return(self, machine: Machine, seconds: float) -> None:
        await self._world.clock.sleep(seconds)
        machine.power_on()
        machine.start()

    # ------------------------------------------------------------------ the network

    async def _isolate(self, machine: Machine, seconds: float) -> bool:
        """From all other brokers, and from the store too in half of the cases."""
        net, others = self._world.net, [i for i in self._world.machines if i != machine.id]
        with_store = self._chance.below(2) == 0 and not machine.is_store_cut
        for other in others:
            net.cut_way(machine.id, other)
            net.cut_way(other, machine.id)
        if with_store:
            machine.cut_store(True)
        await self._world.clock.sleep(seconds)
        for other in others:
            net.mend_way(machine.id, other)
            net.mend_way(other, machine.id)
        if with_store:
            machine.cut_store(False)
        return True

    async def _one_way(self, machine: Machine, seconds: float) -> bool:
        other = self._other(machine)
        self._world.net.cut_way(machine.id, other)
        await self._world.clock.sleep(seconds)
        self._world.net.mend_way(machine.id, other)
        return True

    async def _reset(self, machine: Machine, seconds: float) -> bool:
        self._world.net.reset(machine.id)
        return True

    async def _clog(self, machine: Machine, seconds: float) -> bool:
        way = machine.id, self._other(machine)
        self._world.clogs[way] = 0.05 + self._chance.fraction()
        await self._world.clock.sleep(seconds)
        self._world.clogs.pop(way, None)
        return True

    def _other(self, machine: Machine) -> int:
        others = [i for i in self._world.machines if i != machine.id]
        return others[self._chance.below(len(others))]

    # ------------------------------------------------------------------ the store

    async def _store(self, machine: Machine, seconds: float) -> bool:
        if machine.is_store_cut:
            return False
        machine.cut_store(True)
        await self._world.clock.sleep(seconds)
        machine.cut_store(False)
        return True

    async def _outage(self, machine: Machine, seconds: float) -> bool:
        """The store is away for everybody."""
        machines = [m for m in self._world.machines.values() if not m.is_store_cut]
        for each in machines:
            each.cut_store(True)
        await self._world.clock.sleep(seconds)
        for each in machines:
            each.cut_store(False)
        return True

    async def _etcd_election(self, machine: Machine, seconds: float) -> bool:
        """The store changes its leader: for a moment nobody is answered, then all watches are broken."""
        losses = self._world.store_losses
        losses.update(dict.fromkeys(self._world.machines, (0.7, 0.7)))
        await self._world.clock.sleep(min(1.0, seconds))
        losses.clear()
        for process in self._world.processes:
            process.store.break_watches()
        return True

    async def _mute(self, machine: Machine, seconds: float) -> bool:
        """A watch that brings nothing, on a connection that is fine otherwise; long ones are read again (rule 18)."""
        process, seconds = machine.process, seconds * 4
        if process is None or machine.is_store_cut:
            return False
        machine.mislead(seconds)
        process.store.silent = True
        await self._world.clock.sleep(seconds)
        process.store.silent = machine.is_store_cut
        self._world.etcd.wake()
        return True

    async def _replies(self, machine: Machine, seconds: float) -> bool:
        self._world.store_losses[machine.id] = self._chance.fraction() * 0.3, self._chance.fraction() * 0.5
        await self._world.clock.sleep(seconds)
        self._world.store_losses.pop(machine.id, None)
        return True

    async def _late(self, machine: Machine, seconds: float) -> bool:
        """What it sends may be carried out when nobody waits for it any more."""
        self._world.store_lateness[machine.id] = self._chance.fraction() * 0.5
        await self._world.clock.sleep(seconds)
        self._world.store_lateness.pop(machine.id, None)
        return True

    async def _lease(self, machine: Machine, seconds: float) -> bool:
        entry = self._world.etcd.entries.get(BROKERS.key(machine.id))
        if entry is None:
            return False
        machine.mislead(0.0)
        self._world.etcd.end_lease(entry.lease)
        return True

    async def _history(self, machine: Machine, seconds: float) -> bool:
        """Compacted under a watch that breaks: everything is to be read again."""
        self._world.etcd.compact(self._world.etcd.revision)
        if machine.process is not None:
            machine.process.store.break_watches()
        return True
