"""The Kafka listener: accepts connections, closes dead ones, stops without losing a response. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ottla_broker.config import KafkaEdgeConfig
from ottla_broker.edge.kafka.connection import Connection
from ottla_broker.edge.kafka.sasl import LOGIN_S, Sasl
from ottla_broker.edge.kafka.shared import Shared
from ottla_broker.edge.kafka.tls_accept import Security, TlsServer
from ottla_broker.edge.memory import Memory
from ottla_broker.edge.seats import Seats
from ottla_broker.event_loop import next_turn
from ottla_broker.exposed import Histogram
from ottla_broker.metrics import KafkaEdgeProbe
from ottla_broker.scheduler import Scheduler
from ottla_core.errors import InvariantViolation, invariant
from ottla_core.ports.clock import Clock
from ottla_core.real import heap
from ottla_core.real.clock import RealClock

if TYPE_CHECKING:
    from ottla_broker.service.services import Services

#: A request that began to arrive, and an answer that began to leave, must get on within this time.
STALL_S = 30.0
#: How often connections are checked. One timer for all: a timer per connection would cost each request.
_TICK_S_MAX = 5.0
_TICKS_PER_LIMIT = 4
#: While the memory is used up, clients that take nothing of their answers have less time.
_PRESSED_STALL_TICKS = 1
#: After the grace, closing sockets take a turn of the loop or two; who takes longer is left to the
#: process's end.
_ABORT_S = 1.0


class KafkaEdge:
    def __init__(
        self,
        services: Services,
        config: KafkaEdgeConfig,
        probe: KafkaEdgeProbe,
        *,
        clock: Clock | None = None,
        stall_s: float = STALL_S,
        memory: Memory | None = None,
        scheduler: Scheduler | None = None,
        seats: Seats | None = None,
        security: Security | None = None,
        sasl: Sasl | None = None,
        on_violation: Callable[[InvariantViolation], None] | None = None,
    ) -> None:
        """`memory`, `scheduler` and `seats` are shared with others; without them this listener has its own.
        With `security` it speaks TLS, with `sasl` its clients log in."""
        clock = clock or RealClock()
        memory = memory or Memory(config.queued_max_bytes)
        scheduler = scheduler or Scheduler(clock.monotonic, next_turn, Histogram().observe)
        seats = seats or Seats(config.connections_max)
        self._shared = Shared(services, config, probe, clock, memory, scheduler, seats, on_violation, sasl)
        self._config = config
        self._tls = None if security is None else TlsServer(self._shared, security)
        self._server: asyncio.Server | None = None
        idle_s = config.idle_max_ms / 1000
        self._tick_s = min(_TICK_S_MAX, idle_s / _TICKS_PER_LIMIT, stall_s / _TICKS_PER_LIMIT)
        if sasl is not None:
            self._tick_s = min(self._tick_s, LOGIN_S / _TICKS_PER_LIMIT)
        self._stall_ticks = round(stall_s / self._tick_s)
        self._idle_ticks = round(idle_s / self._tick_s)
        self._sweeper: asyncio.TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def bind(self, host: str, port: int) -> int:
        """Bind the port without accepting; return the port, a free one for 0. OSError if it is taken."""
        if self._tls is not None:
            return self._tls.bind(host, port, self._config.backlog)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._shared), host, port, backlog=self._config.backlog, start_serving=False
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def serve(self) -> None:
        invariant(self._server is not None or self._tls is not None, "the Kafka edge serves only after bind")
        shared = self._shared
        self._unsubscribe = shared.services.metadata.subscribe(shared.metadata_cache.on_image)
        if self._tls is not None:
            self._tls.serve()
        else:
            await cast(asyncio.Server, self._server).start_serving()
        self._sweeper = asyncio.get_running_loop().call_later(self._tick_s, self._sweep)

    async def start(self, host: str, port: int) -> int:
        """Bind and serve at once."""
        bound = await self.bind(host, port)
        await self.serve()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Accept no connections and no requests, finish pending requests for `grace_s`, then abort."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._server is not None:
            self._server.close()
        if self._tls is not None:
            await self._tls.close()
        for connection in list(self._shared.connections):
            connection.drain()
        await self._until_gone(grace_s)
        self._shared.give_up_answers()
        for connection in list(self._shared.connections):
            connection.abort()
        await self._until_gone(_ABORT_S)

    async def _until_gone(self, seconds: float) -> None:
        clock = self._shared.clock
        deadline = clock.monotonic() + seconds
        while self._shared.connections and clock.monotonic() < deadline:
            await clock.sleep(0.005)

    def _sweep(self) -> None:
        probe, memory = self._shared.probe, self._shared.memory
        probe.queued_bytes = memory.used
        stall_ticks = self._stall_ticks if memory.room else _PRESSED_STALL_TICKS
        for connection in list(self._shared.connections):
            connection.tick(stall_ticks, self._idle_ticks)
        if memory.should_trim():
            asyncio.get_running_loop().run_in_executor(None, heap.trim)
        self._sweeper = asyncio.get_running_loop().call_later(self._tick_s, self._sweep)
