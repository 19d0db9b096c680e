"""Faults in the order that hurts: each brings a cluster to one situation that single draws hardly ever meet.

Each is aimed at a rule of the design and picks its victims by what they are at that moment: controller, leader,
coordinator. They stay within the budget of `faults.py` (nothing that a disk holds is lost here) and are drawn there
beside the plain ones; a campaign can also be made of one of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla_broker.metadata.image import INTERNAL_TOPICS, PartitionImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.service.transactions import TRANSACTIONS_TOPIC
from ottla_core.ids import TopicPartition
from ottla_core.ports.chance import Chance
from sim.checkers import FICKLE
from sim.spots import Spot

if TYPE_CHECKING:
    from sim.workload import Workload
    from sim.world import Machine

Fault: TypeAlias = Callable[["Machine", float], Coroutine[Any, Any, bool]]


class Nemeses:
    def __init__(self, workload: Workload, chance: Chance) -> None:
        self._world, self._workload = workload.world, workload
        self._chance = chance
        self.kinds: dict[str, Fault] = {
            "late plan": self._late_plan,
            "deaf leader": self._deaf_leader,
            "deposed leader": self._deposed_leader,
            "lone coordinator": self._lone_coordinator,
            "frozen": self._frozen,
            "there and back": self._there_and_back,
            "renewed topic": self._renewed_topic,
        }
        if self._world.shape.is_transactional:
            self.kinds["slow coordinator"] = self._slow_coordinator
            self.kinds["unseen topic"] = self._unseen_topic

    # ------------------------------------------------------------------ the controller

    async def _late_plan(self, machine: Machine, seconds: float) -> bool:
        """Rule 5: what a controller has planned for a death arrives when another is controller."""
        world, entry = self._world, self._world.etcd.entries.get(CONTROLLER.key)
        if entry is None:
            return False
        controller = world.machines[CONTROLLER.decode(entry).broker_id]
        victims = [m for m in world.machines.values() if m is not controller and m.process is not None]
        if not victims:
            return False
        victim = victims[self._chance.below(len(victims))]
        world.store_lateness[controller.id] = 0.8
        victim.kill()
        await world.clock.sleep(0.1 + self._chance.fraction() * 0.6)
        self._end_lease(controller)
        await world.clock.sleep(1.0 + seconds * 0.4)
        world.store_lateness.pop(controller.id, None)
        victim.start()
        return True

    async def _frozen(self, machine: Machine, seconds: float) -> bool:
        """Rule 15: connections break, and who asks why hears nothing, for less than a lease."""
        process = machine.process
        if process is None or process.place.is_stopped:
            return False
        process.place.is_stopped = True
        self._world.net.reset(machine.id)
        await self._world.clock.sleep(2.2 + self._chance.fraction() * 0.7)
        if not process.place.is_dead:
            self._world.loop.resume(process.place)
        return True

    # ------------------------------------------------------------------ leaders

    async def _deaf_leader(self, machine: Machine, seconds: float) -> bool:
        """Rule 6: the store agrees to a larger in-sync set, its leader is not told, and who was added falls behind."""
        world, found = self._world, self._led()
        if found is None:
            return False
        spot, leader = found
        followers = [r for r in world.states()[spot].isr if r != leader.id]
        if not followers:
            return False
        follower = world.machines[followers[self._chance.below(len(followers))]]
        with self._cut((leader, follower)):
            await self._until(spot, lambda state: follower.id not in state.isr, 4.0)
        with self._deaf(leader):
            await self._until(spot, lambda state: follower.id in state.isr, 2.0)
            await world.clock.sleep(self._chance.fraction() * 0.1)
            with self._cut((leader, follower)), self._preferred(spot.tp):
                await world.clock.sleep(2.5)
        return True

    async def _deposed_leader(self, machine: Machine, seconds: float) -> bool:
        """Rules 9 and 11: a leader that is alone with its clients is replaced, and comes back while they still wait."""
        world, found = self._world, self._led()
        if found is None or found[1].is_store_cut:
            return False
        spot, leader = found
        with self._preferred(spot.tp):
            with self._alone(leader):
                await world.clock.sleep(0.1 + self._chance.fraction() * 0.4)
                self._end_lease(leader)
                await world.clock.sleep(0.5 + self._chance.fraction())
            await world.clock.sleep(0.7)
        return True

    async def _renewed_topic(self, machine: Machine, seconds: float) -> bool:
        """Rule 4: a topic is deleted and made again, and its leader dies before it has written down any mark of it."""
        world, first = self._world, TopicPartition(FICKLE, 0)
        for _ in range(40):
            if first in (spot.tp for spot in world.states()):
                break
            await world.clock.sleep(0.1)
        world.is_garden_closed = True
        try:
            with self._preferred(first):
                await world.clock.sleep(1.0 + self._chance.fraction())
                # Half of the time somebody is just coming back, with the old topic's log in its hands.
                if self._chance.below(2) and machine.process is not None:
                    machine.kill()
                    machine.start()
                    await world.clock.sleep(self._chance.fraction() * 0.05)
                await self._workload.renew_fickle()
                await world.clock.sleep(0.1 + self._chance.fraction() * 0.1)
                found = self._led(first)
                if found is None or found[1].is_store_cut:
                    return False
                with self._alone(found[1]):
                    await world.clock.sleep(0.4)
                    found[1].kill()
                    found[1].start()
        finally:
            world.is_garden_closed = False
        return True

    # ------------------------------------------------------------------ coordinators

    async def _lone_coordinator(self, machine: Machine, seconds: float) -> bool:
        """Rule 14: a coordinator that only its clients can reach, until long after its lease has ended."""
        from sim.world import SESSION_S

        found = self._led(internal=True)
        if found is None or found[1].is_store_cut:
            return False
        with self._alone(found[1]):
            # A commit that waits there would hold back the answers that are to be seen.
            self._world.is_reading_only = True
            await self._world.clock.sleep(SESSION_S + 0.2)
            self._world.is_reading_only = False
            await self._world.clock.sleep(1.0 + self._chance.fraction() * 2)
        return True

    async def _there_and_back(self, machine: Machine, seconds: float) -> bool:
        """Rule 20: a coordinator loses its partition, lives on, and gets it back."""
        from sim.world import SESSION_S

        world, found = self._world, self._led(internal=True)
        if found is None:
            return False
        spot, former = found
        self._end_lease(former)
        await self._until(spot, lambda state: state.leader != former.id and former.id in state.isr, 4.0)
        await world.clock.sleep(SESSION_S)
        between = world.machines.get(world.states()[spot].leader, former)
        between.kill()
        await world.clock.sleep(1.0 + self._chance.fraction())
        between.start()
        return True

    async def _slow_coordinator(self, machine: Machine, seconds: float) -> bool:
        """Rule 21: what a transaction coordinator answers and sends takes so long that markers overtake answers."""
        world, found = self._world, self._led(TopicPartition(TRANSACTIONS_TOPIC, 0))
        if found is None:
            return False
        ways = [(found[1].id, other) for other in world.machines if other != found[1].id]
        world.clogs.update(dict.fromkeys(ways, 0.15))
        await world.clock.sleep(1.0 + seconds)
        for way in ways:
            world.clogs.pop(way, None)
        return True

    async def _unseen_topic(self, machine: Machine, seconds: float) -> bool:
        """Rule 21: a topic is made and written to before the coordinator of the transactions has heard of it."""
        found = self._led(TopicPartition(TRANSACTIONS_TOPIC, 0))
        if found is None:
            return False
        coordinator = found[1]
        with self._uninformed(coordinator):
            await self._workload.create_late([i for i in self._world.machines if i != coordinator.id])
            await self._world.clock.sleep(1.0 + self._chance.fraction() * 2)
        return True

    # ------------------------------------------------------------------ whom, and for how long

    def _led(
        self, tp: TopicPartition | None = None, *, internal: bool = False
    ) -> tuple[Spot, Machine] | None:
        """A partition and its leader's machine, if it runs."""
        world = self._world
        led = [
            (spot, world.machines[state.leader])
            for spot, state in world.states().items()
            if state.leader in world.machines and world.machines[state.leader].process is not None
            if (spot.tp == tp if tp is not None else (spot.topic in INTERNAL_TOPICS) == internal)
        ]
        return led[self._chance.below(len(led))] if led else None

    async def _until(self, spot: Spot, holds: Callable[[PartitionImage], bool], limit_s: float) -> None:
        """Not longer: what others do to the cluster meanwhile may keep it from happening."""
        clock = self._world.clock
        deadline = clock.monotonic() + limit_s
        while (state := self._world.states().get(spot)) is not None:
            if holds(state) or clock.monotonic() > deadline:
                return
            await clock.sleep(0.02)

    def _end_lease(self, machine: Machine) -> None:
        entry = self._world.etcd.entries.get(BROKERS.key(machine.id))
        if entry is not None:
            machine.mislead(0.0)
            self._world.etcd.end_lease(entry.lease)

    @contextmanager
    def _preferred(self, tp: TopicPartition) -> Iterator[None]:
        before, self._world.favourite = self._world.favourite, tp
        try:
            yield
        finally:
            self._world.favourite = before

    @contextmanager
    def _cut(self, *pairs: tuple[Machine, Machine]) -> Iterator[None]:
        net = self._world.net
        ways = [(a.id, b.id) for one, other in pairs for a, b in ((one, other), (other, one))]
        for way in ways:
            net.cut_way(*way)
        try:
            yield
        finally:
            for way in ways:
                net.mend_way(*way)

    @contextmanager
    def _alone(self, machine: Machine) -> Iterator[None]:
        """Without the other brokers and the store; clients reach it."""
        others = [m for m in self._world.machines.values() if m is not machine]
        with self._cut(*((machine, other) for other in others)):
            machine.cut_store(True)
            try:
                yield
            finally:
                machine.cut_store(False)

    @contextmanager
    def _uninformed(self, machine: Machine) -> Iterator[None]:
        """Its watch of the store lags; all else works."""
        process, misled_until = machine.process, machine.misled_until
        machine.mislead(60.0)
        if process is not None:
            process.store.silent = True
        try:
            yield
        finally:
            machine.misled_until = misled_until
            machine.mislead(0.0)
            if process is not None:
                process.store.silent = machine.is_store_cut
            self._world.etcd.wake()

    @contextmanager
    def _deaf(self, machine: Machine) -> Iterator[None]:
        """The store hears it, and it does not hear the store."""
        process = machine.process
        misled_until = machine.misled_until
        machine.mislead(60.0)
        self._world.store_losses[machine.id] = 0.0, 1.0
        if process is not None:
            process.store.silent = True
        try:
            yield
        finally:
            self._world.store_losses.pop(machine.id, None)
            machine.misled_until = misled_until
            machine.mislead(0.0)
            if process is not None:
                process.store.silent = machine.is_store_cut
            self._world.etcd.wake()
