"""What all connections of one Kafka listener share: services, limits, memory, counters, running answers.
[S]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla_broker.config import KafkaEdgeConfig
from ottla_broker.edge.kafka import registry
from ottla_broker.edge.kafka.connection import Connection
from ottla_broker.edge.kafka.fetch_session import FetchSessions
from ottla_broker.edge.kafka.frame import SHARED_BYTES
from ottla_broker.edge.kafka.half_open import HalfOpen, silent_max
from ottla_broker.edge.kafka.metadata_cache import MetadataCache
from ottla_broker.edge.kafka.request import Handler, Reply, Steps
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.edge.memory import Memory
from ottla_broker.edge.seats import Seats
from ottla_broker.metrics import Cell, KafkaEdgeProbe
from ottla_broker.request_metrics import ApiTimes
from ottla_broker.scheduler import Scheduler
from ottla_core.errors import InvariantViolation
from ottla_core.ports.clock import Clock

if TYPE_CHECKING:
    from ottla_broker.edge.kafka.sasl import Sasl
    from ottla_broker.service.services import Services


class Route(NamedTuple):
    """An API with all that is needed per request, looked up once."""

    handle: Handler
    overlaps: bool
    read_only: bool
    requests: Cell
    times: ApiTimes


class Shared:
    def __init__(
        self,
        services: Services,
        config: KafkaEdgeConfig,
        probe: KafkaEdgeProbe,
        clock: Clock,
        memory: Memory,
        scheduler: Scheduler,
        seats: Seats,
        on_violation: Callable[[InvariantViolation], None] | None = None,
        sasl: Sasl | None = None,
    ) -> None:
        self.services = services
        self.throttling = services.throttling
        self.config = config
        self.probe = probe
        self.clock = clock
        #: Taken twice per request.
        self.now = clock.monotonic
        self.memory = memory
        self.scheduler = scheduler
        self.seats = seats
        #: None: clients do not log in.
        self.sasl = sasl
        self.metadata_cache = MetadataCache(config.listener.name, clock.monotonic)
        self.fetch_sessions = FetchSessions(config.fetch_sessions_max)
        self.receive_view = memoryview(bytearray(SHARED_BYTES))
        #: A request may take its size divided by this many bytes, in ticks, on top of the stall time.
        self.least_bytes_per_tick = 1 << 16
        #: With their addresses, in the order of arrival.
        self.connections: dict[Connection, str] = {}
        #: Those that have not logged in, or on a listener without logins have sent no request.
        self._silent: HalfOpen[Connection] = HalfOpen(silent_max(seats.limit))
        self._answers: dict[asyncio.Future[Reply | Steps], None] = {}
        self._routes: dict[int, Route] = {}
        self._on_violation = on_violation

    def route(self, key: int) -> Route:
        route = self._routes.get(key)
        if route is None:
            entry = registry.entry(key)
            name = APIS[key].name
            requests, times = self.probe.requests.of(name), self.probe.times.of(name)
            route = Route(entry.handle, entry.overlaps, entry.read_only, requests, times)
            self._routes[key] = route
        return route

    def spawn(self, answer: Awaitable[Reply | Steps]) -> asyncio.Future[Reply | Steps]:
        """Run an answer that has to wait. Kept here until it is done, so that `KafkaEdge.stop` can wait for
        it."""

        future = asyncio.ensure_future(answer)
        self._answers[future] = None
        future.add_done_callback(self._answers.pop)
        return future

    def report_bug(self, error: BaseException) -> None:
        """A bug, already logged; an invariant violation is passed on, to stop the broker."""
        if isinstance(error, InvariantViolation) and self._on_violation is not None:
            self._on_violation(error)

    def admit(self, connection: Connection, address: str) -> bool:
        if not self.seats.take(address):
            self.probe.connections_refused += 1
            return False
        self.connections[connection] = address
        oldest = self._silent.add(connection, address)
        if oldest is not None:
            self.probe.connections_dropped.add("too many silent")
            oldest.abort()
        self.probe.connections_opened += 1
        self.probe.connections.of(self.config.listener.name).n += 1
        return True

    def has_begun(self, connection: Connection) -> None:
        """It has logged in, or sent its first request where clients do not log in."""
        self._silent.remove(connection)

    def gone(self, connection: Connection) -> None:
        address = self.connections.pop(connection, None)
        if address is not None:
            self._silent.remove(connection)
            self.seats.leave(address)
            self.probe.connections_closed += 1
            self.probe.connections.of(self.config.listener.name).n -= 1

    def give_up_answers(self) -> None:
        for future in list(self._answers):
            future.cancel()
