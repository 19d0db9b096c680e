"""A small cluster in memory behind real gRPC edges: what the client's own tests talk to.

One store of partitions, any number of brokers (edges on free ports), leaders that move when a test says so.
Checks CRCs and producer sequences as a broker does, and can be told to refuse, to hold acknowledgements, or
to be silent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self
from uuid import UUID, uuid4

from broker.unthrottled import unthrottled
from ottla_broker.caller import BROKER, Caller
from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge.grpc.probe import SilentProbe
from ottla_broker.edge.grpc.server import GrpcEdge
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage
from ottla_broker.requests import (
    Aborted,
    Appended,
    ConfigChange,
    ConfigValue,
    EpochEnd,
    Fetched,
    FetchWant,
    FoundOffset,
    Maybe,
    NewTopic,
    ProducerIdentity,
    TopicResult,
)
from ottla_broker.service.access import FULL
from ottla_broker.service.producing import Producing
from ottla_core.errors import (
    CorruptMessage,
    InvalidConfig,
    InvalidPartitions,
    InvalidProducerEpoch,
    MessageTooLarge,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    RequestError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import PREFIX_BYTES, BatchHeader, header_at, stamp_prefix, verify, whole_batches


@dataclass
class FakePartition:
    start: int = 0
    end: int = 0
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    #: (epoch, [(first sequence, last sequence, base offset)]) by producer id.
    producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)
    aborted: tuple[Aborted, ...] = ()


class FakeCluster:
    """Topics and records; `brokers` are edges over it. `async with FakeCluster() as cluster`."""

    def __init__(self, brokers: int = 1, config: GrpcEdgeConfig | None = None) -> None:
        self.image = ClusterImage(cluster_id="fake-cluster", controller=0)
        self.partitions: dict[TopicPartition, FakePartition] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.config = config or GrpcEdgeConfig()
        self.brokers = [FakeBroker(self, number) for number in range(brokers)]
        self.auto_create = True
        self.next_producer_id = 100
        self.news = asyncio.Event()
        #: Errors that the next appends get, in order; None lets one through.
        self.refusals: deque[RequestError | None] = deque()
        #: While set, acknowledgements wait for it.
        self.hold: asyncio.Event | None = None
        self.appends: list[tuple[TopicPartition, BatchHeader]] = []
        self.max_fetch_bytes = 1 << 30
        self.max_message_bytes = 1 << 30

    async def __aenter__(self) -> FakeCluster:
        for broker in self.brokers:
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            await broker.stop(0.5)

    @property
    def address(self) -> str:
        return self.brokers[0].address

    def register(self) -> None:
        known = {
            broker.broker_id: BrokerImage(
                broker.broker_id, UUID(int=7), (Endpoint("grpc", "grpc", "127.0.0.1", broker.port),)
            )
            for broker in self.brokers
            if broker.port
        }
        self.image = replace(self.image, brokers=MappingProxyType(known))

    def add_topic(self, name: str, partitions: int = 1, leaders: Sequence[int] | None = None) -> UUID:
        led_by = leaders or [number % len(self.brokers) for number in range(partitions)]
        topic = TopicImage(
            name,
            uuid4(),
            MappingProxyType({}),
            tuple(PartitionImage(replicas=(leader,), leader=leader, isr=(leader,)) for leader in led_by),
        )
        self._put_topic(topic)
        for number in range(len(led_by)):
            self.partitions.setdefault(TopicPartition(name, number), FakePartition())
        return topic.id

    def move_leader(self, tp: TopicPartition, leader: int) -> None:
        topic = self.image.topics[tp.topic]
        parts = list(topic.partitions)
        old = parts[tp.partition]
        parts[tp.partition] = replace(old, leader=leader, leader_epoch=old.leader_epoch + 1)
        self._put_topic(replace(topic, partitions=tuple(parts)))

    def _put_topic(self, topic: TopicImage) -> None:
        self.image = replace(self.image, topics=MappingProxyType({**self.image.topics, topic.name: topic}))

    def drop_topic(self, name: str) -> None:
        left = {key: topic for key, topic in self.image.topics.items() if key != name}
        self.image = replace(self.image, topics=MappingProxyType(left))

    def values(self, tp: TopicPartition) -> list[bytes | None]:
        """All values in the partition, as written."""
        from ottla_core.records.codec import records_of

        found: list[bytes | None] = []
        for _, data in self.partitions[tp].batches:
            found.extend(r.value for r in records_of(data, 0, header_at(data), limit_bytes=1 << 26))
        return found


class FakeBroker:
    """One edge, and the services behind it as this broker sees them."""

    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.port = 0
        self.records = FakeRecords(cluster, broker_id)
        self.producing = Producing(self.records)
        self.topics = FakeTopics(cluster)
        self.configs = FakeConfigs(cluster)
        self.caller = BROKER
        self.access = FULL
        self.throttling = unthrottled()
        self._edge: GrpcEdge | None = None
        #: What it tells of the cluster, if it is cut off.
        self.old_image: ClusterImage | None = None

    @property
    def image(self) -> ClusterImage:
        return self.old_image or self.cluster.image

    def of(self, caller: Caller) -> Self:
        self.caller = caller
        return self

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._edge = GrpcEdge(self, self.cluster.config, SilentProbe())
        self.port = await self._edge.start("127.0.0.1", self.port)
        self.cluster.register()

    async def stop(self, grace_s: float = 0.5) -> None:
        if self._edge is not None:
            await self._edge.stop(grace_s)
            self._edge = None


class FakeRecords:
    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id

    def _find(self, tp: TopicPartition) -> FakePartition:
        image = self._cluster.image.partition(tp)
        if image is None:
            raise UnknownTopicOrPartition()
        if image.leader != self._broker_id:
            raise NotLeaderOrFollower()
        return self._cluster.partitions[tp]

    def append(
        self, tp: TopicPartition, records: Buffer, acks: int, check_transaction: object = None
    ) -> Appended:
        partition = self._find(tp)
        if self._cluster.refusals and (refusal := self._cluster.refusals.popleft()) is not None:
            raise refusal
        first = partition.end
        batches = list(whole_batches(records))
        if not batches:
            raise CorruptMessage("There is no batch in the request.")
        for at, header in batches:
            if header.size > self._cluster.max_message_bytes:
                raise MessageTooLarge()
            if not verify(records, at, header):
                raise CorruptMessage()
            if (known := _check_sequence(partition, header)) is not None:
                return Appended(known, known + header.last_offset_delta, -1, partition.start, 0)
            self._cluster.appends.append((tp, header))
            base = partition.end
            data = stamp_prefix(base, header.length, 0) + bytes(records[at + PREFIX_BYTES : at + header.size])
            partition.batches.append((header_at(data), data))
            partition.end = base + header.last_offset_delta + 1
        self._cluster.news.set()
        self._cluster.news = asyncio.Event()
        return Appended(first, partition.end - 1, -1, partition.start, 0)

    def acknowledged(
        self, tp: TopicPartition, appended: Appended, acks: int, timeout_s: float
    ) -> Awaitable[None] | None:
        hold = self._cluster.hold
        return None if acks != -1 or hold is None or hold.is_set() else _held(hold, timeout_s)

    def fetch(
        self,
        wants: list[FetchWant],
        *,
        max_wait_s: float,
        min_bytes: int,
        max_bytes: int,
        read_committed: bool = False,
        ask: object = None,
        rack: str | None = None,
        polled: object = None,
    ) -> Maybe[list[Fetched]]:
        fetched = self._read(wants, max_bytes)
        enough = sum(len(f.records) for f in fetched) >= min_bytes or any(f.error for f in fetched)
        return fetched if enough or max_wait_s <= 0 else self._wait(wants, max_wait_s, min_bytes, max_bytes)

    async def _wait(
        self, wants: list[FetchWant], max_wait_s: float, min_bytes: int, max_bytes: int
    ) -> list[Fetched]:
        deadline = asyncio.get_running_loop().time() + max_wait_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._cluster.news.wait()
            except TimeoutError:
                return self._read(wants, max_bytes)
            fetched = self._read(wants, max_bytes)
            if sum(len(f.records) for f in fetched) >= min_bytes or any(f.error for f in fetched):
                return fetched

    def _read(self, wants: list[FetchWant], max_bytes: int) -> list[Fetched]:
        fetched: list[Fetched] = []
        room = min(max_bytes, self._cluster.max_fetch_bytes)
        for want in wants:
            try:
                partition = self._find(want.tp)
                if not partition.start <= want.offset <= partition.end:
                    raise OffsetOutOfRange()
            except RequestError as error:
                fetched.append(Fetched(want.tp, error))
                continue
            parts: list[bytes] = []
            size = 0
            # From the end: tests that read a lot do so in order, near the position.
            low, high = 0, len(partition.batches)
            while low < high:
                middle = (low + high) // 2
                if partition.batches[middle][0].last_offset < want.offset:
                    low = middle + 1
                else:
                    high = middle
            for _, data in partition.batches[low:]:
                if size and size + len(data) > min(want.max_bytes, room):
                    break
                parts.append(data)
                size += len(data)
            room -= size
            fetched.append(
                Fetched(
                    want.tp,
                    None,
                    partition.end,
                    partition.end,
                    partition.start,
                    b"".join(parts),
                    partition.aborted,
                )
            )
        return fetched

    def list_offset(
        self, tp: TopicPartition, timestamp_ms: int, *, leader_epoch: int = -1, read_committed: bool = False
    ) -> Maybe[FoundOffset]:
        partition = self._find(tp)
        if timestamp_ms == -1:
            return FoundOffset(partition.end, -1, 0)
        if timestamp_ms == -2:
            return FoundOffset(partition.start, -1, 0)
        for header, _ in partition.batches:
            if header.max_timestamp >= timestamp_ms:
                return FoundOffset(header.base_offset, header.max_timestamp, 0)
        return FoundOffset(-1, -1, -1)

    def epoch_end(self, tp: TopicPartition, epoch: int, current_leader_epoch: int) -> EpochEnd:
        return EpochEnd(epoch, self._find(tp).end)

    async def delete_records(self, tp: TopicPartition, offset: int, timeout_s: float) -> int:
        partition = self._find(tp)
        partition.start = partition.end if offset == -1 else offset
        return partition.start

    async def init_producer_id(self) -> ProducerIdentity:
        self._cluster.next_producer_id += 1
        return ProducerIdentity(self._cluster.next_producer_id, 0)


def _check_sequence(partition: FakePartition, header: BatchHeader) -> int | None:
    """Kafka's rules; the base offset if the batch is a repeat of one of the last five."""
    if not header.has_producer:
        return None
    epoch, seen = partition.producers.get(header.producer_id, (-1, deque[tuple[int, int, int]](maxlen=5)))
    if header.producer_epoch < epoch:
        raise InvalidProducerEpoch()
    if header.producer_epoch > epoch:
        seen = deque(maxlen=5)
    for first, last, base in seen:
        if (first, last) == (header.base_sequence, header.last_sequence):
            return base
    expected = 0 if not seen else (seen[-1][1] + 1) % (1 << 31)
    if header.base_sequence != expected:
        raise OutOfOrderSequenceNumber(f"Expected {expected}, got {header.base_sequence}.")
    seen.append((header.base_sequence, header.last_sequence, partition.end))
    partition.producers[header.producer_id] = (header.producer_epoch, seen)
    return None


async def _held(hold: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await hold.wait()
    except TimeoutError:
        raise RequestTimedOut() from None


class FakeTopics:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def ensure(self, names: Sequence[str]) -> None:
        if self._cluster.auto_create:
            for name in names:
                self._cluster.add_topic(name)

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout_s: float, mutations: Any = None
    ) -> list[TopicResult]:
        results = []
        for topic in topics:
            if topic.name in self._cluster.image.topics:
                results.append(TopicResult(topic.name, TopicAlreadyExists()))
                continue
            count = len(topic.assignments) if topic.assignments else max(1, topic.partitions)
            made = None if validate_only else self._cluster.add_topic(topic.name, count)
            self._cluster.configs[topic.name] = {k: v for k, v in (topic.config or {}).items() if v}
            results.append(TopicResult(topic.name, None, made, count, 1))
        return results

    async def delete(
        self, names: Sequence[str], *, timeout_s: float, mutations: Any = None
    ) -> list[TopicResult]:
        results = []
        for name in names:
            known = name in self._cluster.image.topics
            results.append(TopicResult(name, None if known else UnknownTopicOrPartition()))
            self._cluster.drop_topic(name)
        return results

    async def grow(
        self,
        name: str,
        total: int,
        assignments: Any,
        *,
        validate_only: bool,
        timeout_s: float,
        mutations: Any = None,
    ) -> TopicResult:
        topic = self._cluster.image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition()
        if total <= len(topic.partitions):
            return TopicResult(name, InvalidPartitions(f"It has {len(topic.partitions)} already."))
        if not validate_only:
            self._cluster.add_topic(name, total)
        return TopicResult(name, None, topic.id, total, 1)


class FakeConfigs:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def describe_topic(self, name: str) -> list[ConfigValue]:
        if name not in self._cluster.image.topics:
            raise UnknownTopicOrPartition()
        own = self._cluster.configs.get(name, {})
        return [
            ConfigValue(
                "retention.ms",
                own.get("retention.ms", "604800000"),
                "topic" if "retention.ms" in own else "default",
                "long",
                "How long records are kept.",
                synonyms=(("retention.ms", own.get("retention.ms", "604800000"), "topic"),),
            ),
            ConfigValue("secret", "hush", "topic", "string", "", sensitive=True),
        ]

    def describe_broker(self, broker_id: int | None) -> list[ConfigValue]:
        return [ConfigValue("broker.id", str(broker_id), "static-broker", "int", "", read_only=True)]

    async def alter_topic(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        own = self._cluster.configs.setdefault(name, {})
        for change in changes:
            if change.name != "retention.ms":
                raise InvalidConfig(f"There is no setting {change.name!r}.")
            if validate_only:
                continue
            if change.kind == "delete":
                own.pop(change.name, None)
            else:
                own[change.name] = change.value or ""

    def describe_group(self, group: str) -> list[ConfigValue]:
        own = self._cluster.configs.get(f"group {group}", {})
        return [
            ConfigValue(
                "consumer.assignor", own.get("consumer.assignor"), "group" if own else "default", "string", ""
            )
        ]

    async def alter_group(self, group: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        own = self._cluster.configs.setdefault(f"group {group}", {})
        for change in changes:
            if change.kind == "delete":
                own.pop(change.name, None)
            else:
                own[change.name] = change.value or ""

    async def alter_broker(
        self, broker_id: int | None, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> None:
        raise InvalidConfig("Brokers are not for changing here.")
