"""Services in memory, behind a real Kafka edge: what the edge's own tests and stock clients talk to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

from broker.unthrottled import unthrottled
from ottla_broker.caller import BROKER, Caller
from ottla_broker.config import KafkaEdgeConfig
from ottla_broker.edge.kafka.server import KafkaEdge
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage
from ottla_broker.metrics import KafkaEdgeProbe
from ottla_broker.requests import (
    Appended,
    EpochEnd,
    Fetched,
    FetchWant,
    FoundOffset,
    Maybe,
    ProducerIdentity,
)
from ottla_broker.service.access import FULL
from ottla_broker.service.log_dirs import DescribedDir, DirTarget, ReplicaInDir
from ottla_broker.service.producing import Producing
from ottla_broker.steps import Steps
from ottla_core.errors import (
    CoordinatorNotAvailable,
    CorruptMessage,
    NotController,
    OffsetOutOfRange,
    ReplicaNotAvailable,
    RequestError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import PREFIX_BYTES, stamp_prefix, verify, whole_batches

PARTITIONS = 2


@dataclass
class FakePartition:
    #: (base offset, last offset, max timestamp, bytes as on disk)
    batches: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    readers: dict[asyncio.Future[None], None] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else 0


class FakeRecords:
    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, FakePartition] = {}
        #: Set: acknowledgements of acks=-1 wait for it.
        self.hold: asyncio.Event | None = None
        self.fetches_cancelled = 0
        self._producer_id = 0

    def find(self, tp: TopicPartition) -> FakePartition:
        try:
            return self.partitions[tp]
        except KeyError:
            raise UnknownTopicOrPartition() from None

    def append(
        self, tp: TopicPartition, records: Buffer, acks: int, check_transaction: object = None
    ) -> Appended:
        partition = self.find(tp)
        first = partition.end
        for at, header in whole_batches(records):
            if not verify(records, at, header):
                raise CorruptMessage()
            base = partition.end
            data = stamp_prefix(base, header.length, 0) + bytes(records[at + PREFIX_BYTES : at + header.size])
            partition.batches.append((base, base + header.last_offset_delta, header.max_timestamp, data))
        for reader in partition.readers:
            if not reader.done():
                reader.set_result(None)
        return Appended(first, partition.end - 1, -1, 0, 0)

    def acknowledged(
        self, tp: TopicPartition, appended: Appended, acks: int, timeout_s: float
    ) -> Awaitable[None] | None:
        if acks != -1 or self.hold is None or self.hold.is_set():
            return None
        return self._held(self.hold, timeout_s)

    async def _held(self, hold: asyncio.Event, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(hold.wait(), timeout_s)
        except TimeoutError:
            raise RequestTimedOut() from None

    def fetch(
        self,
        wants: Sequence[FetchWant],
        *,
        max_wait_s: float,
        min_bytes: int,
        max_bytes: int,
        read_committed: bool = False,
        ask: Callable[[int, int], int] | None = None,
        rack: str | None = None,
        polled: Callable[[float], None] | None = None,
    ) -> Maybe[list[Fetched]]:
        fetched = self._read(wants, max_bytes)
        enough = sum(len(f.records) for f in fetched) >= min_bytes or any(f.error for f in fetched)
        if enough or max_wait_s <= 0 or not wants:
            return fetched
        return self._wait(wants, max_wait_s, max_bytes)

    async def _wait(self, wants: Sequence[FetchWant], max_wait_s: float, max_bytes: int) -> list[Fetched]:
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partitions = [self.find(want.tp) for want in wants]
        for partition in partitions:
            partition.readers[news] = None
        try:
            await asyncio.wait((news,), timeout=max_wait_s)
        except asyncio.CancelledError:
            self.fetches_cancelled += 1
            raise
        finally:
            for partition in partitions:
                partition.readers.pop(news, None)
        return self._read(wants, max_bytes)

    def _read(self, wants: Sequence[FetchWant], max_bytes: int) -> list[Fetched]:
        fetched: list[Fetched] = []
        room = max_bytes
        for want in wants:
            try:
                partition = self.find(want.tp)
                if not 0 <= want.offset <= partition.end:
                    raise OffsetOutOfRange()
            except RequestError as error:
                fetched.append(Fetched(want.tp, error))
                continue
            data = b""
            for _, last, _, batch in partition.batches:
                if last >= want.offset and (room == max_bytes or len(data) + len(batch) <= want.max_bytes):
                    if room < len(batch) and room < max_bytes:
                        break
                    data += batch
                    room -= len(batch)
            fetched.append(Fetched(want.tp, None, partition.end, partition.end, 0, data))
        return fetched

    def list_offset(
        self, tp: TopicPartition, timestamp_ms: int, *, leader_epoch: int = -1, read_committed: bool = False
    ) -> Maybe[FoundOffset]:
        partition = self.find(tp)
        if timestamp_ms == -1:
            return FoundOffset(partition.end, -1, 0)
        if timestamp_ms == -2:
            return FoundOffset(0, -1, 0)
        return self._search(partition, timestamp_ms)

    async def _search(self, partition: FakePartition, timestamp_ms: int) -> FoundOffset:
        await asyncio.sleep(0)
        for base, _, newest, _ in partition.batches:
            if newest >= timestamp_ms:
                return FoundOffset(base, newest, 0)
        return FoundOffset(-1, -1, -1)

    def epoch_end(self, tp: TopicPartition, epoch: int, current_leader_epoch: int) -> EpochEnd:
        return EpochEnd(0, self.find(tp).end)

    async def delete_records(self, tp: TopicPartition, offset: int, timeout_s: float) -> int:
        return self.find(tp).end if offset == -1 else offset

    def producers(self, tp: TopicPartition) -> list[Any]:
        self.find(tp)
        return []

    async def init_producer_id(self) -> ProducerIdentity:
        self._producer_id += 1
        return ProducerIdentity(self._producer_id, 0)


class FakeTransactions:
    """A coordinator that is never available."""

    def __getattr__(self, name: str) -> Any:
        async def refuse(*args: Any, **more: Any) -> Any:
            raise CoordinatorNotAvailable()

        return refuse

    async def write_markers(self, marker: Any, partitions: Sequence[TopicPartition]) -> list[RequestError]:
        return [CoordinatorNotAvailable() for _ in partitions]

    def commit_offsets(self, *args: Any, **more: Any) -> Steps[Any]:
        yield from self._refuse_in_steps()

    def list_transactions(self, wanted: Any) -> Steps[Any]:
        yield from self._refuse_in_steps()

    def _refuse_in_steps(self) -> Steps[Any]:
        yield None
        raise CoordinatorNotAvailable()


class FakeAccounts:
    """ACLs, users, quotas: there are none, and the controller takes no changes."""

    def describe(self, *args: Any, **more: Any) -> list[Any]:
        return []

    async def create(self, *args: Any, **more: Any) -> list[Any]:
        raise NotController()

    delete = alter = create


class FakeTopics:
    def __init__(self, services: FakeServices) -> None:
        self._services = services
        self.auto_create = True

    def settling(self, opened_at: float) -> None:
        """All is quiet."""

    async def ensure(self, names: Sequence[str]) -> None:
        await asyncio.sleep(0)
        if self.auto_create:
            for name in names:
                self._services.add_topic(name)

    async def create(
        self, topics: Sequence[Any], *, validate_only: bool, timeout_s: float, mutations: Any = None
    ) -> list[Any]:
        return []

    async def delete(self, names: Sequence[str], *, timeout_s: float, mutations: Any = None) -> list[Any]:
        return []


class FakeCluster:
    """Partitions that never move, and no broker to remove."""

    async def move(
        self, moves: Sequence[Any], *, keep_replication_factor: bool, timeout_s: float
    ) -> list[Any]:
        return []

    async def elect(self, wanted: object, *, unclean: bool, timeout_s: float) -> list[Any]:
        return []

    async def unregister(self, broker: int, *, timeout_s: float) -> None:
        return None

    async def moves(self, wanted: object = None) -> list[Any]:
        return []


class FakeGroups:
    """Every group is coordinated by the first broker; its members are the group tests' part."""

    def __init__(self, services: FakeServices) -> None:
        self._services = services

    def find_coordinator(self, group: str) -> BrokerImage:
        return next(iter(self._services.image.brokers.values()))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Everything else is refused as by a coordinator that is not there yet."""

        def refuse(*_: object, **__: object) -> Any:
            raise CoordinatorNotAvailable()

        return refuse


class FakeLogDirs:
    def __init__(self, services: FakeServices) -> None:
        self._services = services

    async def describe(self, wanted: Mapping[str, Collection[int]] | None) -> list[DescribedDir]:
        held = self._services.records.partitions
        rows = [tp for tp in held if wanted is None or tp.partition in wanted.get(tp.topic, ())]
        return [DescribedDir("/logs", None, tuple(ReplicaInDir(tp, 1, 0) for tp in rows))]

    async def alter(self, targets: Sequence[DirTarget]) -> list[RequestError | None]:
        held = self._services.records.partitions
        return [None if tp in held else ReplicaNotAvailable() for tp, _ in targets]


class FakeServices:
    def __init__(self) -> None:
        self.caller = BROKER
        self.broker_id = 0
        self.config = SimpleNamespace()
        self.image = ClusterImage(cluster_id="0123456789abcdefABCDEF", controller=0)
        #: Nobody is told of changes: tests replace the image between requests.
        self.metadata = SimpleNamespace(subscribe=lambda callback: lambda: None)
        self.records = FakeRecords()
        self.producing = Producing(self.records)
        self.topics = FakeTopics(self)
        self.configs = SimpleNamespace()
        self.groups = FakeGroups(self)
        self.log_dirs = FakeLogDirs(self)
        self.cluster = FakeCluster()
        self.transactions = FakeTransactions()
        self.acls = self.users = self.quotas = FakeAccounts()
        self.access = FULL
        self.throttling = unthrottled()

    def of(self, caller: Caller) -> FakeServices:
        self.caller = caller
        return self

    def advertise(self, port: int) -> None:
        endpoints = (Endpoint("kafka", "kafka", "127.0.0.1", port), Endpoint("grpc", "grpc", "127.0.0.1", 1))
        brokers = {0: BrokerImage(0, UUID(int=7), endpoints)}
        self.image = replace(self.image, revision=self.image.revision + 1, brokers=MappingProxyType(brokers))

    def add_topic(self, name: str, partitions: int = PARTITIONS) -> UUID:
        made = tuple(PartitionImage(replicas=(0,), leader=0, isr=(0,)) for _ in range(partitions))
        topic = TopicImage(name, uuid4(), MappingProxyType({}), made)
        self.image = replace(
            self.image,
            revision=self.image.revision + 1,
            topics=MappingProxyType({**self.image.topics, name: topic}),
            names_by_id=MappingProxyType({**self.image.names_by_id, topic.id: name}),
        )
        for index in range(partitions):
            self.records.partitions[TopicPartition(name, index)] = FakePartition()
        return topic.id


class FakeBroker:
    """`async with FakeBroker() as broker`: an edge on a free port over fake services."""

    def __init__(self, config: KafkaEdgeConfig | None = None, *, stall_s: float = 30.0) -> None:
        self.services = FakeServices()
        self.probe = KafkaEdgeProbe()
        self.config = config or KafkaEdgeConfig()
        self.edge = KafkaEdge(cast(Any, self.services), self.config, self.probe, stall_s=stall_s)
        self.port = 0

    async def __aenter__(self) -> FakeBroker:
        self.port = await self.edge.start("127.0.0.1", 0)
        self.services.advertise(self.port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.edge.stop(2.0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"
