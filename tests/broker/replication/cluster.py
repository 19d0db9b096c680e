"""Three brokers in one process: the shipped hosts, logs, machines and streams over simulated disks, store and net.

The test is the controller: it writes registrations, admissions and partition states to the store as the controller
would, so each step of a fail-over can be looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from ottla_broker.controller.isr_writer import IsrWriter
from ottla_broker.log.dirs import LogDirs
from ottla_broker.metadata.image import BrokerImage, MemberImage, PartitionImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.cluster import CLUSTER
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_broker.metadata.sections.topics import TOPICS, StoredTopic
from ottla_broker.metadata.values import uuid_text
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.metrics import Metrics
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import ACKS_ALL, Partition
from ottla_broker.replication.follow_clients import FollowClients
from ottla_broker.replication.follow_server import FollowServer
from ottla_broker.requests import Appended
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.store import Branch, Delete, Put
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock
from sim.batches import Rec, make_batch, read_batches
from sim.disk import SimDisk
from sim.peers import Listener, SimNet, SimPeers
from sim.store import SimEtcd, SimStore

T = TypeVar("T")
TOPIC_ID = UUID(int=0xABC, version=4)
TP = TopicPartition("t", 0)
IDS = (1, 2, 3)
LAG_S = 0.6
NOW_MS = 1_700_000_000_000


class InlineOffload:
    """Runs work at once, answers a turn later."""

    async def run(self, work: Callable[[], T]) -> T:
        result = work()
        await asyncio.sleep(0)
        return result


class Node:
    """One life of a broker; the disk outlives it."""

    def __init__(self, cluster: Cluster, broker_id: int, disk: SimDisk) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.disk = disk
        clock, chance = cluster.clock, RealChance()
        self.incarnation = chance.uuid()
        self.store = SimStore(cluster.etcd)
        self.metadata = Metadata(self.store, clock, chance)
        self.metrics = Metrics()
        probes = self.metrics.log
        self.dirs = LogDirs(disk, ["/data/log"], broker_id=broker_id, chance=chance, probe=probes)
        offload = InlineOffload()
        self.host = PartitionHost(
            broker_id, self.dirs, clock, offload, self.metrics, lambda image: {}, lag_max_s=LAG_S
        )
        probe = self.metrics.replication
        self.server = FollowServer(
            broker_id,
            self.incarnation,
            self.host.find_by_key,
            clock,
            offload,
            probe,
            throttles=self.host.replication.throttles,
        )
        self.clients = FollowClients(
            broker_id,
            self.incarnation,
            SimPeers(cluster.net, broker_id),
            clock,
            chance,
            probe,
            throttles=self.host.replication.throttles,
        )
        self.writer = IsrWriter(self.store, clock, self.metadata)
        self.is_confirmed = True
        self.host.connect(
            self.clients, self.writer, on_led=self.server.on_led, is_confirmed=lambda: self.is_confirmed
        )
        self.tasks: list[asyncio.Task[None]] = []
        self.marks: list[int] = []

    async def start(self) -> None:
        self.disk.make_dirs("/data")
        self.dirs.open(now_ms=NOW_MS)
        self.dirs.join_cluster("c")
        await self.metadata.load()
        self.host.open_logs(self.metadata.image)
        self.metadata.subscribe(self.host.on_image)
        self.cluster.net.listen(self.id, Listener(self.incarnation, self.server.serve, _no_answer))
        self.tasks = [asyncio.ensure_future(part.run()) for part in (self.metadata, self.host, self.clients)]
        self.cluster.register(self)
        await self.cluster.until(lambda: self.metadata.image.is_admitted(self.id, self.incarnation))
        self.host.admit(self.metadata.image)

    async def kill(self) -> None:
        """As `kill -9`: nothing is said to anybody, and what reached the page cache stays."""
        self.cluster.net.kill(self.id)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.server.stop()
        await self.clients.close()
        await self.writer.close()
        self.disk.kill()
        self.cluster.nodes.pop(self.id, None)

    # ------------------------------------------------------------------ the partition

    @property
    def partition(self) -> Partition:
        return self.host.find(TP)

    def append(self, *values: str, acks: int = ACKS_ALL) -> Appended:
        batch = make_batch([Rec(None, value.encode(), NOW_MS) for value in values])
        return self.partition.append(batch, acks, NOW_MS)

    async def write(self, *values: str, acks: int = ACKS_ALL, timeout_s: float = 5.0) -> Appended:
        """As a producer does: returns when it is acknowledged."""
        appended = self.append(*values, acks=acks)
        wait = self.partition.acknowledged(appended, acks, timeout_s)
        if wait is not None:
            await wait
        return appended

    async def delete_records(self, offset: int, timeout_s: float = 5.0) -> int:
        """As DeleteRecords does: returns the low watermark when all in-sync replicas are that far."""
        low = self.partition.delete_records(offset, timeout_s)
        return low if isinstance(low, int) else await low

    def values(self, limit: int | None = None) -> list[str]:
        """All records below the high watermark, or below `limit`."""
        partition = self.partition
        log = partition.log
        stop = partition.high_watermark if limit is None else limit
        found: list[str] = []
        offset = log.start_offset
        while (extent := log.read(offset, 1 << 20, limit_offset=stop)) is not None:
            records = read_batches(extent.file.read(extent.position, extent.size))
            found += [(r.value or b"").decode() for at, r in records if at >= offset]
            offset = records[-1][0] + 1
        return found


async def _no_answer(request: bytes, caller: int) -> bytes:
    return b""


class Cluster:
    def __init__(self) -> None:
        self.clock = RealClock()
        self.etcd = SimEtcd(self.clock)
        self.net = SimNet(self.clock)
        self.nodes: dict[int, Node] = {}
        self.disks = {broker_id: SimDisk() for broker_id in IDS}
        self._put(CLUSTER.key, CLUSTER.encode(uuid_text(UUID(int=9, version=4))))

    # ------------------------------------------------------------------ the controller's writes

    def _put(self, key: str, value: bytes) -> None:
        self.etcd.transact((), [Branch((), (Put(key, value),))])

    def register(self, node: Node) -> None:
        image = BrokerImage(node.id, node.incarnation, (), directories=node.dirs.ids)
        self._put(BROKERS.key(node.id), BROKERS.encode(image))
        self._put(MEMBERS.key(node.id), MEMBERS.encode(MemberImage(node.id, node.incarnation)))

    def unregister(self, broker_id: int) -> None:
        self.etcd.transact((), [Branch((), (Delete(BROKERS.key(broker_id)),))])

    def create_topic(
        self, leader: int = 1, isr: tuple[int, ...] = IDS, replicas: tuple[int, ...] = IDS, **config: str
    ) -> None:
        state = PartitionImage(replicas, leader=leader, leader_epoch=0, isr=isr)
        self._put(partition_key(TOPIC_ID, 0), PARTITIONS.encode(state))
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self._put(TOPICS.key("t"), TOPICS.encode(StoredTopic(TOPIC_ID, 1, settings)))

    @property
    def state(self) -> PartitionImage:
        return PARTITIONS.decode(self.etcd.entries[partition_key(TOPIC_ID, 0)])

    def change(self, **changes: object) -> None:
        """Write the partition's state, as an election does."""
        wanted = replace(self.state, **changes)  # type: ignore[arg-type]
        self._put(partition_key(TOPIC_ID, 0), PARTITIONS.encode(wanted))

    def elect(self, leader: int, isr: tuple[int, ...] | None = None) -> None:
        state = self.state
        self.change(leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr or state.isr)

    # ------------------------------------------------------------------ brokers

    async def start(self, broker_id: int) -> Node:
        node = Node(self, broker_id, self.disks[broker_id])
        self.nodes[broker_id] = node
        await node.start()
        return node

    async def until(self, holds: Callable[[], bool], limit_s: float = 5.0, what: str = "") -> None:
        end = self.clock.monotonic() + limit_s
        while not _holds(holds):
            if self.clock.monotonic() > end:
                raise AssertionError(f"it did not happen in {limit_s:g} s: {what or holds}; {self.picture()}")
            await asyncio.sleep(0.002)

    async def leads(self, broker_id: int) -> Node:
        node = self.nodes[broker_id]
        epoch = self.state.leader_epoch
        await self.until(
            lambda: node.partition.is_leader and node.partition.leader_epoch == epoch, what="leading"
        )
        return node

    async def in_sync(self, *ids: int) -> None:
        await self.until(lambda: set(self.state.isr) == set(ids), what=f"ISR {ids}")

    async def agree(self) -> list[str]:
        """Wait until all brokers that live have the same, all of it committed; gives the records."""
        nodes = list(self.nodes.values())

        def same() -> bool:
            logs = [node.partition.log for node in nodes]
            marks = {node.partition.high_watermark for node in nodes}
            return len({log.end_offset for log in logs} | marks) == 1

        await self.until(same, what="the same logs")
        contents = [node.values() for node in nodes]
        assert all(each == contents[0] for each in contents)
        return contents[0]

    def picture(self) -> dict[int, str]:
        shown = {}
        for broker_id, node in self.nodes.items():
            try:
                p = node.partition
                role = "leads" if p.is_leader else "follows" if p.following else "idle"
                shown[broker_id] = f"{role} {p.leader_epoch} end={p.log.end_offset} hw={p.high_watermark}"
            except RequestError as error:
                shown[broker_id] = str(error)
        return shown


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except RequestError:
        return False  # Not opened yet.


@asynccontextmanager
async def cluster(
    *ids: int,
    leader: int = 1,
    isr: tuple[int, ...] = IDS,
    replicas: tuple[int, ...] = IDS,
    **config: str,
) -> AsyncIterator[Cluster]:
    """Brokers with one topic of one partition, replicated on all of them."""
    made = Cluster()
    try:
        for broker_id in ids or IDS:
            await made.start(broker_id)
        made.create_topic(leader, isr, replicas, **config)
        await made.leads(leader)
        yield made
    finally:
        for node in list(made.nodes.values()):
            await node.kill()
        await made.net.close()
