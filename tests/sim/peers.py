"""The other brokers' twin in memory: ordered frames, bounded links, and faults on demand.

`SimNet` is the wire between all brokers of a world; `SimPeers` is one broker's view of it and implements the `Peers`
port. A broker that serves registers with `SimNet.listen`; who is not there refuses, who is cut off is silent.

Faults. `delay` is called for each frame with (sender, receiver) and gives seconds; `SimNet.cut` severs two brokers in
both directions (`heal` mends it): open links between them stay open and carry nothing until healed, as a real
connection does; `SimNet.reset` breaks open links at once, as a killed process does. Frames are never reordered within
a link nor delivered twice: the transport is a connection. `lose` drops a single frame for which it says so; the link
breaks with it, because a connection that lost bytes is dead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import FollowLink, PeerUnavailable, Presence, Probe

#: Frames that a link takes before the sender waits: enough to be a window, few enough to show what waits behind it.
WINDOW_FRAMES = 8


@dataclass
class Listener:
    """What a broker answers with."""

    incarnation: UUID
    serve: Callable[[FollowLink, int], Awaitable[None]]
    answer: Callable[[bytes, int], Awaitable[bytes]]


class _Pipe:
    """One direction of a link."""

    def __init__(self, net: SimNet, sender: int, receiver: int) -> None:
        self.net = net
        self.sender, self.receiver = sender, receiver
        self.frames: deque[bytes | None] = deque()
        self.changed = asyncio.Event()
        self.broken: str | None = None

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def break_off(self, reason: str) -> None:
        if self.broken is None:
            self.broken = reason
            self.change()

    async def send(self, frame: bytes) -> None:
        while self.broken is None and len(self.frames) >= WINDOW_FRAMES:
            await self.changed.wait()
        if self.broken is not None:
            raise PeerUnavailable(self.broken)
        if self.net.lose is not None and self.net.lose(self.sender, self.receiver):
            self.break_off("the connection was lost")
            raise PeerUnavailable("the connection was lost")
        self.frames.append(frame)
        self.change()

    async def receive(self) -> bytes | None:
        while True:
            if self.frames and not self.net.is_cut(self.sender, self.receiver):
                if self.net.delay is not None:
                    await self.net.clock.sleep(self.net.delay(self.sender, self.receiver))
                if self.frames and not self.net.is_cut(self.sender, self.receiver):
                    frame = self.frames.popleft()
                    self.change()
                    return frame
                continue
            if self.broken is not None and not self.frames:
                raise PeerUnavailable(self.broken)
            await self.changed.wait()


class SimLink:
    def __init__(self, out: _Pipe, into: _Pipe) -> None:
        self._out, self._into = out, into

    async def send(self, frame: bytes) -> None:
        assert type(frame) is bytes, "grpc.aio takes bytes and nothing else"
        await self._out.send(frame)

    async def receive(self) -> bytes | None:
        return await self._into.receive()

    async def close(self) -> None:
        self._into.break_off("the link was closed")
        if self._out.broken is None:
            self._out.frames.append(None)
            self._out.broken = "the link was closed"
            self._out.change()


class SimNet:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.listeners: dict[int, Listener] = {}
        self.delay: Callable[[int, int], float] | None = None
        self.lose: Callable[[int, int], bool] | None = None
        self._cuts: dict[frozenset[int], None] = {}
        self._pipes: list[_Pipe] = []
        self._tasks: dict[asyncio.Task[None], None] = {}

    # ------------------------------------------------------------------ faults

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self._cuts

    def cut(self, one: int, other: int) -> None:
        self._cuts[frozenset((one, other))] = None

    def heal(self) -> None:
        self._cuts.clear()
        for pipe in self._pipes:
            pipe.change()

    def reset(self, broker_id: int) -> None:
        """Break every link of a broker, as when its process dies."""
        for pipe in self._pipes:
            if broker_id in (pipe.sender, pipe.receiver):
                pipe.frames.clear()
                pipe.break_off("connection reset by peer")
        self._pipes = [pipe for pipe in self._pipes if pipe.broken is None]

    # ------------------------------------------------------------------ brokers

    def listen(self, broker_id: int, listener: Listener) -> None:
        self.listeners[broker_id] = listener

    def kill(self, broker_id: int) -> None:
        self.listeners.pop(broker_id, None)
        self.reset(broker_id)

    def connect(self, follower: int, leader: int) -> SimLink:
        there, back = _Pipe(self, follower, leader), _Pipe(self, leader, follower)
        self._pipes += [there, back]
        server = SimLink(back, there)
        task = asyncio.get_running_loop().create_task(self._serve(self.listeners[leader], server, follower))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return SimLink(there, back)

    async def _serve(self, listener: Listener, link: SimLink, follower: int) -> None:
        try:
            await listener.serve(link, follower)
        finally:
            await link.close()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SimPeers:
    def __init__(self, net: SimNet, broker_id: int) -> None:
        self._net = net
        self._broker_id = broker_id

    async def follow(self, broker_id: int) -> FollowLink:
        await asyncio.sleep(0)
        if broker_id not in self._net.listeners:
            raise PeerUnavailable(f"broker {broker_id} refused the connection")
        if self._net.is_cut(self._broker_id, broker_id):
            await self._net.clock.sleep(1.0)
            raise PeerUnavailable(f"broker {broker_id} does not answer")
        return self._net.connect(self._broker_id, broker_id)

    async def probe(self, broker_id: int, timeout_s: float = 1.0) -> Probe:
        await asyncio.sleep(0)
        if self._net.is_cut(self._broker_id, broker_id):
            await self._net.clock.sleep(timeout_s)
            return Probe(Presence.SILENT)
        listener = self._net.listeners.get(broker_id)
        return Probe(Presence.REFUSED) if listener is None else Probe(Presence.HERE, listener.incarnation)

    async def ask(self, broker_id: int, request: bytes, timeout_s: float) -> bytes:
        await asyncio.sleep(0)
        listener = self._net.listeners.get(broker_id)
        if self._net.is_cut(self._broker_id, broker_id):
            await self._net.clock.sleep(timeout_s)
            raise PeerUnavailable(f"broker {broker_id} does not answer")
        if listener is None:
            raise PeerUnavailable(f"broker {broker_id} refused the connection")
        return await listener.answer(request, self._broker_id)

    async def close(self) -> None:
        return None
