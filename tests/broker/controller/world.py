"""A small world for the controller's tests: brokers on one simulated store, or on a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from ottla_broker.controller.caretaker import CareConfig
from ottla_broker.controller.isr_writer import IsrWriter
from ottla_broker.controller.service import Controller
from ottla_broker.membership.broker_rpc import BrokerRpc
from ottla_broker.membership.failure_detector import FailureDetector
from ottla_broker.membership.registration import Registration
from ottla_broker.metadata.cluster_id import find_or_create_cluster_id
from ottla_broker.metadata.history import Seen
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.topic_config import TopicConfig
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import FollowLink, Peers, PeerUnavailable, Presence, Probe
from ottla_core.ports.store import MetadataStore, StoreError
from ottla_core.real.chance import RealChance
from sim.clock import ManualClock
from sim.store import SimEtcd, SimStore


def directory(broker_id: int) -> UUID:
    return UUID(int=500 + broker_id, version=4)


@dataclass
class Node:
    """What a broker has of the cluster's life; `tasks` run until it is killed."""

    store: MetadataStore
    clock: Clock
    chance: RealChance
    metadata: Metadata
    registration: Registration
    controller: Controller
    isr_writer: IsrWriter
    rpc: BrokerRpc
    detector: FailureDetector
    #: Set when the process is gone.
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    async def start(self) -> None:
        await find_or_create_cluster_id(self.store, self.chance, Seen())
        await self.registration.register(20)
        await self.metadata.load()
        for part in (self.metadata, self.registration, self.controller, self.detector):
            self.tasks.append(asyncio.ensure_future(part.run()))

    async def kill(self) -> None:
        """As `kill -9` does: nothing is said to anybody."""
        self.dead.set()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()

    async def stop(self) -> None:
        self.detector.end()
        await self.kill()
        await self.registration.withdraw()


class NoPeers:
    """Nobody can be reached, and nobody can tell why."""

    async def follow(self, broker_id: int) -> FollowLink:
        raise PeerUnavailable("there is no network")

    async def probe(self, broker_id: int, timeout_s: float = 1.0) -> Probe:
        return Probe(Presence.SILENT)

    async def ask(self, broker_id: int, request: bytes, timeout_s: float) -> bytes:
        raise PeerUnavailable("there is no network")

    async def close(self) -> None:
        return None


def make_node(
    store: MetadataStore,
    clock: Clock,
    broker_id: int = 1,
    *,
    torn: bool = False,
    seed: int | None = None,
    seen: Seen | None = None,
    directories: tuple[UUID, ...] | None = None,
    peers: Peers | None = None,
    defaults: Mapping[str, str] | None = None,
    care: CareConfig | None = None,
) -> Node:
    chance = RealChance(seed)
    mine = (directory(broker_id),) if directories is None else directories
    broker = BrokerImage(
        broker_id,
        chance.uuid(),
        (Endpoint("kafka", "kafka", "127.0.0.1", 9092),),
        directories=mine,
        torn=mine if torn else (),
    )
    metadata = Metadata(store, clock, chance, seen=seen)
    registration = Registration(store, clock, metadata, broker)
    found = dict(defaults or {})
    rpc = BrokerRpc(peers or NoPeers())
    controller = Controller(
        store,
        clock,
        chance,
        metadata,
        registration,
        validate=TopicConfig.validate,
        defaults=lambda image: found,
        care=care,
    )
    detector = FailureDetector(store, clock, metadata, registration, peers or NoPeers(), rpc, ttl_s=6.0)
    writer = IsrWriter(store, clock, metadata)
    return Node(store, clock, chance, metadata, registration, controller, writer, rpc, detector)


class WorldPeers:
    """Brokers of one world reach each other: a dead one refuses at once, a paused one is silent."""

    def __init__(self, world: SimWorld, own: int) -> None:
        self._world = world
        self._own = own

    async def follow(self, broker_id: int) -> FollowLink:
        raise PeerUnavailable("nothing is replicated here")

    async def probe(self, broker_id: int, timeout_s: float = 1.0) -> Probe:
        await asyncio.sleep(0)
        if await self._is_cut(broker_id, timeout_s):
            return Probe(Presence.SILENT)
        node = self._world.living.get(broker_id)
        if node is None or node.dead.is_set():
            return Probe(Presence.REFUSED)
        return Probe(Presence.HERE, node.registration.broker.incarnation)

    async def ask(self, broker_id: int, request: bytes, timeout_s: float) -> bytes:
        await asyncio.sleep(0)
        node = self._world.living.get(broker_id)
        if await self._is_cut(broker_id, timeout_s) or node is None or node.dead.is_set():
            raise PeerUnavailable("nobody answers")
        answering = asyncio.ensure_future(node.rpc.answer(request, self._own))
        dying = asyncio.ensure_future(node.dead.wait())
        late = asyncio.ensure_future(self._world.clock.sleep(timeout_s))
        try:
            await asyncio.wait((answering, dying, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (dying, late):
                task.cancel()
            if not answering.done():
                answering.cancel()
        if answering.done() and not answering.cancelled():
            return answering.result()
        raise PeerUnavailable("the connection was reset")

    async def _is_cut(self, broker_id: int, timeout_s: float) -> bool:
        cut = {frozenset(pair) for pair in self._world.cut}
        if broker_id in self._world.paused or frozenset((self._own, broker_id)) in cut:
            await self._world.clock.sleep(timeout_s)
            return True
        return False

    async def close(self) -> None:
        return None


class SimWorld:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.etcd = SimEtcd(self.clock)
        self.nodes: list[Node] = []
        #: The newest process of each broker id.
        self.living: dict[int, Node] = {}
        #: Brokers whose process stands still, and pairs that do not reach each other.
        self.paused: set[int] = set()
        self.cut: set[tuple[int, int]] = set()

    def node(self, broker_id: int = 1, **options: object) -> Node:
        made = make_node(
            SimStore(self.etcd),
            self.clock,
            broker_id,
            seed=len(self.nodes),
            **{"peers": WorldPeers(self, broker_id), **options},  # type: ignore[arg-type]
        )
        self.nodes.append(made)
        self.living[broker_id] = made
        return made

    async def started(self, broker_id: int = 1, **options: object) -> Node:
        """A node that is admitted."""
        node = self.node(broker_id, **options)
        starting = asyncio.ensure_future(node.start())
        await self.until(starting.done)
        await starting
        await self.until(lambda: node.image.is_admitted(broker_id, node.registration.broker.incarnation))
        await self.until(lambda: node.image.controller != broker_id or node.controller.is_active)
        return node

    async def until(self, holds: Callable[[], bool], limit_s: float = 60) -> None:
        """Let virtual time pass until something holds."""
        end = self.clock.monotonic() + limit_s
        while not holds():
            assert self.clock.monotonic() < end, "it did not happen in time"
            await self.clock.advance(0.05)

    def store_of(self, node: Node) -> SimStore:
        assert isinstance(node.store, SimStore)
        return node.store


@asynccontextmanager
async def sim_world() -> AsyncIterator[SimWorld]:
    world = SimWorld()
    try:
        yield world
    finally:
        for node in world.nodes:
            await node.kill()


class Faults:
    """Fails chosen calls of one store client, by their number."""

    def __init__(self, store: SimStore, operation: str) -> None:
        self._operation = operation
        self.seen = 0
        self.lose_requests: set[int] = set()
        self.lose_replies: set[int] = set()
        store.before, store.after = self._before, self._after

    async def _before(self, operation: str) -> None:
        if operation == self._operation:
            self.seen += 1
            if self.seen in self.lose_requests:
                raise StoreError("the request was lost")

    async def _after(self, operation: str) -> None:
        if operation == self._operation and self.seen in self.lose_replies:
            raise StoreError("the reply was lost")
