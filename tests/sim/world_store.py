"""The metadata store of a world: one etcd that shows every write to the checkers, and each broker's way to it.

On the way requests and replies take their time, and the faults may have them lost, or late: a caller that no longer
waits cannot call its request back, and etcd may carry it out seconds later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_core.ports.store import Branch, Compare, Outcome, StoreError
from sim.loop import Place
from sim.store import SimEtcd, SimStore

if TYPE_CHECKING:
    from sim.world import Machine, World

#: How long the store's adapter waits for an answer.
_TIMEOUT_S = 2.0
#: etcd gives up a request that has waited so long for its turn.
LATE_S_MAX = 7.0


class WorldEtcd(SimEtcd):
    """Notifies the world of every write, and of every lease that ends."""

    world: World

    def transact(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> Outcome:
        before = {w.key: self.entries.get(w.key) for b in branches for w in b.writes}
        controller = self.entries.get(CONTROLLER.key)
        outcome = super().transact(guard, branches)
        for branch, taken in zip(branches, outcome.taken, strict=True):
            for write in branch.writes if taken else ():
                now = self.entries.get(write.key)
                self.world.on_store_write(write.key, before[write.key], now, controller)
        return outcome

    def end_lease(self, lease_id: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is not None:
            self.world.note(f"lease ends: {', '.join(lease.keys)}")
        super().end_lease(lease_id)


class WorldStore(SimStore):
    """The store as one life of a broker sees it."""

    def __init__(self, world: World, machine: Machine, place: Place) -> None:
        super().__init__(world.etcd)
        self._world, self._machine, self._place = world, machine, place
        self.silent = machine.is_store_cut
        self.before, self.after = self._before, self._after

    async def transact(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> Outcome:
        world = self._world
        if not world.is_late(self._machine.id):
            return await super().transact(guard, branches)
        # The request belongs to the store by now: it goes on when its sender is stopped or dead.
        world.loop.spawn(Place(self._place.name), self._arrive_late(guard, branches))
        await world.clock.sleep(_TIMEOUT_S)
        raise StoreError("no answer in time to transact")

    async def _arrive_late(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> None:
        await self._world.clock.sleep(self._world.store_chance.fraction() * LATE_S_MAX)
        self._world.note("store: a late request arrives")
        with suppress(StoreError):
            self.server.transact(guard, branches)

    async def _before(self, operation: str) -> None:
        await self._hop(operation, "asks", self._world.is_request_lost)

    async def _after(self, operation: str) -> None:
        await self._hop(operation, "is answered", self._world.is_reply_lost)

    async def _hop(self, operation: str, what: str, is_lost: Callable[[int], bool]) -> None:
        world = self._world
        await world.clock.sleep(world.store_delay_s())
        if self._machine.is_store_cut or is_lost(self._machine.id):
            await world.clock.sleep(_TIMEOUT_S)
            world.note(f"store: nobody {what}: {operation}")
            raise StoreError(f"no answer to {operation}")
