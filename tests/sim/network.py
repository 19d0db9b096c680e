"""The network of a world: `SimNet` with one-way cuts and hosts that are down, and the `Peers` port on top of it.

What a caller finds, by what the other side is:

* a process that runs: its answer, after a delay each way;
* a process that is stopped, or has bound its port and does not serve yet: silence, for as long as the caller waits;
* no process on a host that is up: a refusal at once, and open connections break when it dies;
* a host without power, or one behind a cut: silence. Its open connections break when the host is up again.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from ottla_broker.peer_wiring import PeerWiring
from ottla_core.ports.peers import FollowLink, PeerUnavailable, Presence, Probe
from sim.loop import Place, SimLoop
from sim.peers import Listener, SimNet

#: A transport gives up on a connection that is not answered.
_CONNECT_TIMEOUT_S = 1.0


@dataclass
class Port:
    """What listens on a broker's port."""

    place: Place
    incarnation: UUID
    #: Done when the process is dead.
    died: asyncio.Future[None]
    #: None: bound, and nobody is served yet.
    wiring: PeerWiring | None = None

    @property
    def is_silent(self) -> bool:
        return self.wiring is None or self.place.is_stopped


class WorldNet(SimNet):
    def __init__(self, loop: SimLoop, clock: object, delay_s: Callable[[int, int], float]) -> None:
        super().__init__(clock)  # type: ignore[arg-type]
        self.loop = loop
        self.delay = delay_s
        self.ports: dict[int, Port] = {}
        self._ways: dict[tuple[int, int], int] = {}
        self._down: dict[int, None] = {}

    # ------------------------------------------------------------------ faults

    def is_cut(self, one: int, other: int) -> bool:
        return bool(self._ways.get((one, other))) or one in self._down or other in self._down

    def cut_way(self, sender: int, receiver: int) -> None:
        self._ways[sender, receiver] = self._ways.get((sender, receiver), 0) + 1

    def mend_way(self, sender: int, receiver: int) -> None:
        self._ways[sender, receiver] -= 1
        self._wake()

    def host_down(self, broker_id: int) -> None:
        self._down[broker_id] = None

    def host_up(self, broker_id: int) -> None:
        self._down.pop(broker_id, None)
        self.reset(broker_id)
        self._wake()

    def _wake(self) -> None:
        for pipe in self._pipes:
            pipe.change()

    # ------------------------------------------------------------------ brokers

    def serve(self, broker_id: int, wiring: PeerWiring) -> None:
        port = self.ports[broker_id]
        port.wiring = wiring

        async def serve(link: FollowLink, follower: int) -> None:
            # In the place of the one who serves: it may be stopped while its peers go on.
            await asyncio.wait([self.loop.spawn(port.place, wiring.serve(link, follower))])

        self.listen(broker_id, Listener(port.incarnation, serve, wiring.answer))

    def close_port(self, broker_id: int) -> None:
        self.ports.pop(broker_id, None)
        self.kill(broker_id)


class WorldPeers:
    """One broker's view of the others: the `Peers` port."""

    def __init__(self, net: WorldNet, broker_id: int) -> None:
        self._net = net
        self._id = broker_id

    async def follow(self, broker_id: int) -> FollowLink:
        net = self._net
        await self._travel(self._id, broker_id)
        port = self._find(broker_id)
        if port is None:
            raise PeerUnavailable(f"broker {broker_id} refused the connection")
        if self._is_cut(broker_id) or port.wiring is None:
            await net.clock.sleep(_CONNECT_TIMEOUT_S)
            raise PeerUnavailable(f"broker {broker_id} does not answer")
        # The wire belongs to nobody: it goes on when one of its ends is stopped.
        return contextvars.Context().run(net.connect, self._id, broker_id)

    async def probe(self, broker_id: int, timeout_s: float = 1.0) -> Probe:
        await self._travel(self._id, broker_id)
        port = self._find(broker_id)
        if port is None:
            return Probe(Presence.REFUSED)
        if self._is_cut(broker_id) or port.is_silent:
            await self._net.clock.sleep(timeout_s)
            return Probe(Presence.SILENT)
        await self._travel(broker_id, self._id)
        return Probe(Presence.HERE, port.incarnation)

    async def ask(self, broker_id: int, request: bytes, timeout_s: float) -> bytes:
        clock = self._net.clock
        deadline = clock.monotonic() + timeout_s
        await self._travel(self._id, broker_id)
        port = self._find(broker_id)
        if port is None:
            raise PeerUnavailable(f"broker {broker_id} refused the connection")
        if not self._is_cut(broker_id) and port.wiring is not None:
            work = self._net.loop.spawn(port.place, port.wiring.answer(request, self._id))
            try:
                await asyncio.wait([work, port.died], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                await self._travel(broker_id, self._id)
                if not self._is_cut(broker_id):
                    if work.done() and not work.cancelled():
                        return work.result()
                    if port.died.done():
                        raise PeerUnavailable(f"broker {broker_id} reset the connection")
            finally:
                work.cancel()
        await clock.sleep(max(0.0, deadline - clock.monotonic()))
        raise PeerUnavailable(f"broker {broker_id} does not answer")

    async def close(self) -> None:
        return None

    async def _travel(self, sender: int, receiver: int) -> None:
        delay = self._net.delay
        await self._net.clock.sleep(0.0 if delay is None else delay(sender, receiver))

    def _find(self, broker_id: int) -> Port | None:
        """None: the host is up and nobody listens."""
        port = self._net.ports.get(broker_id)
        if port is None and self._net.is_cut(self._id, broker_id):
            return Port(Place("nobody"), UUID(int=0), asyncio.get_running_loop().create_future())
        return port

    def _is_cut(self, broker_id: int) -> bool:
        return self._net.is_cut(self._id, broker_id) or self._net.is_cut(broker_id, self._id)
