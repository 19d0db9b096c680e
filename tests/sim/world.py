"""A whole cluster in one thread and no real time: the shipped `Broker` over simulated disks, store and network.

Everything between the ports is the shipped code, down to its start and its stop; only the edges are left out, and
clients call the record service where an edge would. A `Machine` outlives the processes on it: it has the disk and the
boot id. A `Process` is one life of a broker: killed, stopped and resumed through its `Place`.

The world decides nothing about faults (`faults.py`), load (`workload.py`) or what is right (`checkers.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from ottla_broker.broker import Broker, NoLogDirectory
from ottla_broker.cluster_secret import ClusterSecret
from ottla_broker.config import BrokerConfig
from ottla_broker.listeners import listeners_of
from ottla_broker.membership.registration import BrokerIdTaken
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.sections.partitions import PARTITIONS
from ottla_broker.metadata.sections.topics import TOPICS
from ottla_broker.metadata.watcher import LostHistory
from ottla_broker.partition.partition import Partition
from ottla_broker.service.services import Services
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Buffer
from ottla_core.ports.store import Entry, StoreError
from sim.copies import MOVES_MAX
from sim.disk import SimDisk
from sim.loop import Place, SimClock, SimLoop, SimOffload, chance_for, here
from sim.network import Port, WorldNet, WorldPeers
from sim.shape import PLAIN, Shape
from sim.spots import Spot
from sim.txn_ledger import NotingWriter
from sim.world_store import WorldEtcd, WorldStore

T = TypeVar("T")

TRACE_LINES_MAX = 400
#: A process that ended by itself is started again after so long, as a supervisor does.
_RESTART_S = 0.7
#: The lease of a broker's registration.
SESSION_S = 3
#: How long a coordinator waits for a member of a group.
GROUP_SESSION_MS = 2000
#: Above it, leaders ask for the coordinators of open transactions.
TRANSACTION_MAX_TIMEOUT_MS = 5000
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Violation(AssertionError):
    """An invariant does not hold; the text begins with its number in docs/invariants.md."""


class Unreachable(Exception):
    """A client's call came to nothing: refused, reset or not answered. It may have been carried out."""


class _NoEdge:
    """Where an edge would be."""

    def __init__(
        self, bind: Callable[[], None] = lambda: None, serve: Callable[[], None] = lambda: None
    ) -> None:
        self._bind, self._serve = bind, serve

    async def start(self) -> int:
        return 0

    async def bind(self, host: str, port: int) -> int:
        self._bind()
        return port

    async def serve(self) -> None:
        self._serve()

    async def stop(self, grace_s: float = 0.0) -> None:
        return None


class _NoLogins:
    """Where the logins of the edges would be."""

    async def add_users(self, users: object) -> None:
        return None


class SimBroker(Broker):
    """The shipped broker without its edges."""

    services: Services
    on_bound: Callable[[], None]
    on_serving: Callable[[], None]

    def _make_edges(self, services: Services) -> None:
        self.services = services
        self._logins = _NoLogins()  # type: ignore[assignment]
        internal = _NoEdge(self.on_bound, self.on_serving)
        self._edges = tuple(
            (listener, internal if listener.protocol == "internal" else _NoEdge())  # type: ignore[misc]
            for listener in listeners_of(self._config)
        )


class Process:
    """One life of a broker."""

    def __init__(self, world: World, machine: Machine, life: int) -> None:
        self.world, self.machine = world, machine
        self.id = machine.id
        self.place = Place(f"b{machine.id}.{life}")
        self.died: asyncio.Future[None] = world.loop.create_future()
        self.is_serving = False
        self.stop = asyncio.Event()
        self.store = WorldStore(world, machine, self.place)
        clock = SimClock(world.loop, lambda: machine.skew_ms)
        offload = SimOffload(clock, lambda: world.disk_chance.fraction() ** 3 * world.flush_s_max)
        self.broker = SimBroker(
            machine.config,
            clock=clock,
            disk=machine.disk,
            offload=offload,
            chance=chance_for(world.seed, f"broker {self.place}"),
            store=self.store,
            log=structlog.get_logger("ottla.broker"),
            secret=ClusterSecret((b"of all simulated brokers",)),
            make_peers=lambda locate, auth, tls: WorldPeers(world.net, machine.id),
        )
        self.broker._exporter = _NoEdge()  # type: ignore[assignment]
        self.broker.on_bound, self.broker.on_serving = self._bind, self._serve

    async def live(self) -> None:
        world = self.world
        try:
            await self.broker.start()
            self.broker._metadata.subscribe(lambda old, new: world.checkers.on_image(self))
            await self.broker.run_until(self.stop)
            await self.broker.stop()
            world.note("stopped gracefully")
        except (StoreError, BrokerIdTaken, LostHistory, NoLogDirectory, TimeoutError) as error:
            world.note(f"gives up: {error!r}")
        except Exception as error:
            world.fail(Violation(f"I10 broker {self.place} failed: {error!r}"), error)
        world.loop.call_soon(world.end_process, self)

    def _bind(self) -> None:
        self.world.net.ports[self.id] = Port(self.place, self.incarnation, self.died)

    def _serve(self) -> None:
        self.is_serving = True
        producing = self.broker.services.producing
        producing._writer = NotingWriter(producing._writer, self._on_append)  # type: ignore[assignment]
        self.world.net.serve(self.id, self.broker._peer_wiring)

    def _on_append(self, tp: TopicPartition, records: Buffer) -> None:
        self.world.checkers.transactions.on_append(self, tp, records)

    @property
    def incarnation(self) -> Any:
        return self.broker._registration.broker.incarnation

    def partitions(self) -> list[Partition]:
        host = getattr(self.broker, "_host", None)
        return [] if host is None else [p for p in host if p.log.broken is None]


class Machine:
    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        self.disk = SimDisk()
        self.process: Process | None = None
        self.lives = self.boots = 0
        self.is_host_up = True
        self.is_store_cut = False
        self.misled_until = 0.0
        #: Lost its log's tail, and the cluster has not been told yet by a new life.
        self.is_torn = False
        #: The same, and its disk is another.
        self.is_emptied = False
        #: How wrong its wall clock is.
        self.skew_ms = world.drawn_skew_ms()
        config = BrokerConfig()
        self.config = replace(
            config,
            process=replace(config.process, broker_id=broker_id),
            log_dirs=replace(
                config.log_dirs,
                dirs=("/data/log",),
                checkpoint_interval_ms=1500,
                retention_check_interval_ms=700 if world.shape.is_trimmed else 300_000,
                cleaner_backoff_ms=600 if world.shape.is_compacted else 300_000,
                transaction_max_timeout_ms=TRANSACTION_MAX_TIMEOUT_MS,
                transaction_check_ms=400 if world.shape.is_transactional else 300_000,
            ),
            replication=replace(config.replication, lag_max_ms=world.lag_max_ms, moves_max=MOVES_MAX),
            etcd=replace(config.etcd, session_timeout_ms=SESSION_S * 1000, heartbeat_interval_ms=800),
            topics=replace(config.topics, rebalance_interval_s=7),
            groups=replace(
                config.groups,
                partitions=2,
                session_timeout_min_ms=1000,
                initial_rebalance_delay_ms=300,
                consumer_session_timeout_ms=GROUP_SESSION_MS,
                consumer_heartbeat_interval_ms=500,
            ),
        )
        self.boot()

    def boot(self) -> None:
        self.boots += 1
        self.disk.make_dirs("/proc/sys/kernel/random")
        self.disk.make_dirs("/data")
        self.disk.write_file(_BOOT_ID, f"boot-{self.id}-{self.boots}\n".encode())
        self.disk.sync_dir("/")

    def start(self) -> None:
        if self.process is None and self.is_host_up:
            self.lives += 1
            self.process = Process(self.world, self, self.lives)
            self.world.lives[self.process.place.name] = self.process
            self.world.note(f"start {self.process.place}")
            self.world.loop.spawn(self.process.place, self.process.live())

    def stop_gracefully(self) -> None:
        if self.process is not None:
            self.process.stop.set()

    def kill(self) -> None:
        """The process ends now; what it wrote is in the page cache."""
        process, self.process = self.process, None
        if process is not None:
            process.place.is_dead = True
            if not process.died.done():
                process.died.set_result(None)
            self.world.net.close_port(self.id)
        self.disk.kill()

    def lose_power(self) -> None:
        self.world.net.host_down(self.id)  # First: nobody hears a reset from a host without power.
        self.is_host_up, self.is_torn = False, True
        self._vanish()
        self.disk.crash(self.world.disk_chance)

    def lose_disk(self) -> None:
        """Power and disk; an empty one takes its place."""
        self.world.net.host_down(self.id)
        self.is_host_up, self.is_torn, self.is_emptied = False, True, True
        self._vanish()
        self.disk = SimDisk()

    def _vanish(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.place.is_dead = True
            self.world.net.ports.pop(self.id, None)
            self.world.net.listeners.pop(self.id, None)

    def power_on(self) -> None:
        if not self.is_host_up:
            self.is_host_up = True
            self.world.net.host_up(self.id)
            self.boot()

    def mislead(self, seconds: float) -> None:
        """Its lease ends before its time, or the news of a new leader does not arrive."""
        until = self.world.clock.monotonic() + seconds + SESSION_S
        self.misled_until = max(self.misled_until, until)

    @property
    def is_misled(self) -> bool:
        """Whether it may take itself for a leader, with a lease that it believes in."""
        return self.world.clock.monotonic() < self.misled_until

    def cut_store(self, is_cut: bool) -> None:
        self.is_store_cut = is_cut
        if self.process is not None:
            self.process.store.silent = is_cut
        self.world.etcd.wake()


class World:
    def __init__(self, seed: int, shape: Shape = PLAIN) -> None:
        from sim.checkers import Checkers  # The checkers look at the world, the world calls them.

        self.seed, self.shape = seed, shape
        self.loop = SimLoop()
        self.loop.set_exception_handler(self._on_loop_error)
        self.clock = SimClock(self.loop)
        self.net_chance, self.disk_chance = chance_for(seed, "net"), chance_for(seed, "disk")
        self.store_chance = chance_for(seed, "store")
        self._clock_chance, self._look_chance = chance_for(seed, "clocks"), chance_for(seed, "looks")
        settings = chance_for(seed, "settings")
        self.lag_max_ms = 1000 + 500 * settings.below(5)
        #: All topics ask for flushes, so power may fail everywhere.
        self.is_flushed = settings.below(4) == 0
        #: All topics ask for two copies, so disks may be lost.
        self.is_strict = settings.below(2) == 0
        #: The longest that a thread may take to begin a flush, and to report it.
        self.flush_s_max = 0.04 if settings.below(3) else 0.4
        self.trace: deque[str] = deque(maxlen=TRACE_LINES_MAX)
        self._digest = hashlib.sha256()
        self.failure: Violation | None = None
        self.failed_by: BaseException | None = None
        #: Set by the faults: probabilities, per broker, that a request to or a reply of the store is lost.
        self.store_losses: dict[int, tuple[float, float]] = {}
        #: The same for transactions that arrive after their sender has given them up.
        self.store_lateness: dict[int, float] = {}
        #: Set by the faults: a partition that clients prefer, so that there is something to lose.
        self.favourite: TopicPartition | None = None
        #: Set by the faults: nobody creates or deletes topics meanwhile; groups commit nothing meanwhile.
        self.is_garden_closed = self.is_reading_only = False
        #: Set by the faults: links that are slow, by (sender, receiver).
        self.clogs: dict[tuple[int, int], float] = {}
        self.etcd = WorldEtcd(self.clock)
        self.etcd.world = self
        self.net = WorldNet(self.loop, self.clock, self._net_delay_s)
        self.checkers = Checkers(self)
        self.is_supervised = True
        #: All processes that ever were, by the name of their place.
        self.lives: dict[str, Process] = {}
        self._states: tuple[int, dict[Spot, PartitionImage]] = 0, {}
        self.machines = {i: Machine(self, i) for i in range(1, shape.brokers + 1)}

    # ------------------------------------------------------------------ chance at the ports

    def chance_of_rereading(self) -> bool:
        """Whether a compacted log is looked at from its beginning: not each time, that would take too long."""
        return self._look_chance.below(25) == 0

    def drawn_skew_ms(self) -> int:
        most = self.shape.skew_ms
        return self._clock_chance.below(2 * most + 1) - most if most else 0

    def _net_delay_s(self, sender: int, receiver: int) -> float:
        slow = self.clogs.get((sender, receiver), 0.0)
        return 0.0002 + self.net_chance.fraction() ** 3 * 0.006 + slow * self.net_chance.fraction()

    def store_delay_s(self) -> float:
        draw = self.store_chance.fraction()
        return 0.0005 + draw**4 * 0.02 + (0.3 * draw if self.store_chance.below(200) == 0 else 0.0)

    def is_request_lost(self, broker_id: int) -> bool:
        return self.store_chance.fraction() < self.store_losses.get(broker_id, (0.0, 0.0))[0]

    def is_reply_lost(self, broker_id: int) -> bool:
        return self.store_chance.fraction() < self.store_losses.get(broker_id, (0.0, 0.0))[1]

    def is_late(self, broker_id: int) -> bool:
        return self.store_chance.fraction() < self.store_lateness.get(broker_id, 0.0)

    # ------------------------------------------------------------------ running

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run to the end, or to the first violation, which is raised."""
        structlog.configure(processors=[self._on_log_line])
        task = self.loop.spawn(None, main)
        task.add_done_callback(lambda ended: self.loop.stop())
        try:
            self.loop.run_forever()
            if self.failure is not None:
                raise self.failure from self.failed_by
            task.result()
        finally:
            self.failure = self.failure or Violation("the end")  # Nothing is noted about the burial.
            try:
                self.loop.bury()
            finally:
                self.loop.close()
                structlog.reset_defaults()

    def fail(self, violation: Violation, cause: BaseException | None = None) -> None:
        if self.failure is None:
            self.note(f"VIOLATION {violation}")
            self.failure, self.failed_by = violation, cause
            self.loop.stop()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self.fail(error)
        else:
            self.fail(Violation(f"I10 nobody expected this: {context.get('message')}: {error!r}"), error)

    def end_process(self, process: Process) -> None:
        """A process ended by itself; a supervisor starts it again."""
        machine = process.machine
        if machine.process is process:
            machine.kill()
            if self.is_supervised:
                self.loop.spawn(None, self._start_later(machine))

    async def _start_later(self, machine: Machine) -> None:
        await self.clock.sleep(_RESTART_S)
        machine.start()

    # ------------------------------------------------------------------ looking

    @property
    def processes(self) -> list[Process]:
        return [m.process for m in self.machines.values() if m.process is not None]

    @property
    def serving(self) -> list[Process]:
        return [p for p in self.processes if p.is_serving]

    def process_in(self, place: Place) -> Process | None:
        """Whose doing it is, dead or alive: what was sent to the store may outlive its sender."""
        return self.lives.get(place.name)

    def states(self) -> dict[Spot, PartitionImage]:
        """Partitions of topics that exist, as the store has them, whoever knows it."""
        revision, found = self._states
        if revision == self.etcd.revision:
            return found
        names, found, entries = {}, {}, self.etcd.entries
        for key, entry in entries.items():
            if key.startswith("topics/"):
                topic = TOPICS.decode(entry)
                names[topic.id] = TOPICS.id_of(key), topic.partitions
        for key, entry in entries.items():
            if key.startswith("partitions/"):
                topic_id, index = PARTITIONS.id_of(key)
                name, count = names.get(topic_id, ("", 0))
                if index < count:
                    found[Spot(name, topic_id, index)] = PARTITIONS.decode(entry)
        self._states = self.etcd.revision, found
        return found

    def config_of(self, spot: Spot) -> Mapping[str, str]:
        entry = self.etcd.entries.get(TOPICS.key(spot.topic))
        return {} if entry is None else TOPICS.decode(entry).config

    def is_admitted(self, process: Process) -> bool:
        entry = self.etcd.entries.get(MEMBERS.key(process.id))
        return entry is not None and MEMBERS.decode(entry).incarnation == process.incarnation

    def on_store_write(
        self, key: str, old: Entry | None, new: Entry | None, controller: Entry | None
    ) -> None:
        value = "-" if new is None else new.value.decode(errors="replace")
        self.note(f"etcd {self.etcd.revision}: {key} = {value}")
        self.checkers.on_store_write(here(), key, old, new, controller)

    # ------------------------------------------------------------------ clients

    async def call(
        self, process: Process | None, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float
    ) -> T:
        """A client's request to a broker: it may be lost, late, or carried out without an answer."""
        if process is None or not process.is_serving:
            raise Unreachable("nobody is there")
        await self.clock.sleep(self._net_delay_s(0, process.id))
        if process.place.is_dead:
            raise Unreachable("the connection was refused")
        task = self.loop.spawn(process.place, work())
        # In no place: who has asked may be dead by then.
        task.add_done_callback(
            lambda ended: ended.cancelled() or ended.exception(), context=contextvars.Context()
        )
        await asyncio.wait([task, process.died], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        await self.clock.sleep(self._net_delay_s(process.id, 0))
        if not task.done():
            raise Unreachable("no answer" if not process.died.done() else "the connection was reset")
        return task.result()

    # ------------------------------------------------------------------ the trace

    def note(self, text: str) -> None:
        if self.failure is None:
            line = f"{self.loop.time():10.6f} {here() or 'world'!s:6} {text}"
            self.trace.append(line)
            self._digest.update(line.encode())

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:16]

    def _on_log_line(self, logger: Any, level: str, event: dict[str, Any]) -> Any:
        what = event.pop("event", "")
        if level != "debug":
            self.note(f"{what} " + " ".join(f"{name}={value}" for name, value in event.items()))
        raise structlog.DropEvent
