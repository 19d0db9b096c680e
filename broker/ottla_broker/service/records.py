"""Service for both edges: fetch, offsets, and the append of one partition that `producing` calls. [S]

Requests that can be answered at once need no task or await; see `Maybe` in `requests`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.producers import ProducerDescription
from ottla_broker.log.validation import Unfinished
from ottla_broker.metadata.image import INTERNAL_TOPICS
from ottla_broker.metrics import Metrics
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import Partition
from ottla_broker.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    Appended,
    EpochEnd,
    Fetched,
    FetchWant,
    FoundOffset,
    Maybe,
    ProducerIdentity,
)
from ottla_broker.scheduler import Scheduler
from ottla_broker.service.delayed_fetch import Ask, DelayedFetch, FetchLimits, FetchSteps, Polled
from ottla_broker.service.producer_ids import ProducerIds
from ottla_broker.service.reread_check import RereadCheck
from ottla_broker.service.validating import Validating
from ottla_core.errors import (
    CorruptMessage,
    InvalidRequest,
    InvalidTopicException,
    PolicyViolation,
)
from ottla_core.ids import NO_EPOCH, TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.disk import Buffer
from ottla_core.ports.offload import Offload


class RecordService:
    def __init__(
        self,
        host: PartitionHost,
        producer_ids: ProducerIds,
        clock: Clock,
        offload: Offload,
        metrics: Metrics,
        scheduler: Scheduler,
    ) -> None:
        """`scheduler` is the run queue of the edges."""
        self._host = host
        self._scheduler = scheduler
        self._metrics = metrics
        self._producer_ids = producer_ids
        self._clock = clock
        self._offload = offload
        self._rereads = RereadCheck()
        self._validating = Validating(clock, offload)

    def append(
        self,
        tp: TopicPartition,
        records: Buffer,
        acks: int,
        check_transaction: Callable[[], None] | None = None,
    ) -> Maybe[Appended]:
        """Write a client's batches to one partition's log; `acknowledged` says when that may be answered.

        Nearly always done at once. Batches that take long to check come back as an awaitable; their order is kept,
        and the records are not used after this returns. `check_transaction` is called right before they are written.
        """
        if tp.topic in INTERNAL_TOPICS:
            raise InvalidTopicException(f"{tp.topic} belongs to the cluster; clients only read it.")
        partition, validating = self._host.find(tp), self._validating
        if not validating.is_busy(partition):
            try:
                if check_transaction is None:
                    return partition.append(records, acks, self._clock.wall_ms())
                check_transaction()
                return partition.append(records, acks, self._clock.wall_ms(), origin=AppendOrigin.TRANSACTION)
            except Unfinished:
                pass
        return validating.append(partition, records, acks, check_transaction)

    def acknowledged(
        self, tp: TopicPartition, appended: Appended, acks: int, timeout_s: float
    ) -> Awaitable[None] | None:
        """None if the reply may be sent now; else await the flush or commit that the reply needs."""
        return self._host.find(tp).acknowledged(appended, acks, timeout_s)

    def fetch(
        self,
        wants: Sequence[FetchWant],
        *,
        max_wait_s: float,
        min_bytes: int,
        max_bytes: int,
        read_committed: bool = False,
        ask: Ask | None = None,
        rack: str | None = None,
        polled: Polled | None = None,
    ) -> Maybe[list[Fetched]]:
        """Batches from each wanted partition, waiting up to `max_wait_s` until `min_bytes` are there.

        `ask` gets the bytes to read, in total and of the first partition; it may grant less. With a `rack`, also an
        empty one, followers serve the fetch too, and leaders may name a closer replica instead (KIP-392).
        `polled` gets the seconds that were spent waiting for records.
        """
        # A fetch never waits for more than one response can hold.
        limits = FetchLimits(
            max_wait_s, min(min_bytes, max_bytes), max_bytes, read_committed, ask, rack, polled
        )
        return self._delayed(wants, limits).start()

    def fetch_in_steps(
        self,
        wants: Sequence[FetchWant],
        *,
        max_wait_s: float,
        min_bytes: int,
        max_bytes: int,
        read_committed: bool = False,
        ask: Ask | None = None,
        rack: str | None = None,
        polled: Polled | None = None,
    ) -> FetchSteps:
        """The same in slices, for many partitions."""
        limits = FetchLimits(
            max_wait_s, min(min_bytes, max_bytes), max_bytes, read_committed, ask, rack, polled
        )
        return self._delayed(wants, limits).steps()

    def _delayed(self, wants: Sequence[FetchWant], limits: FetchLimits) -> DelayedFetch:
        return DelayedFetch(
            self._host,
            self._offload,
            self._metrics,
            wants,
            limits,
            self._rereads,
            self._clock,
            self._scheduler,
        )

    def list_offset(
        self,
        tp: TopicPartition,
        timestamp_ms: int,
        *,
        leader_epoch: int = NO_EPOCH,
        read_committed: bool = False,
    ) -> Maybe[FoundOffset]:
        partition = self._host.find(tp)
        partition.check_leader(leader_epoch)
        limit = partition.stable_offset() if read_committed else partition.high_watermark
        epoch = partition.image.leader_epoch
        if timestamp_ms == LATEST_TIMESTAMP:
            partition.check_latest()
            return FoundOffset(limit, -1, epoch)
        if timestamp_ms == EARLIEST_TIMESTAMP:
            start = partition.log.start_offset
            return FoundOffset(start, -1, partition.log.epochs.epoch_at(start))
        if timestamp_ms < MAX_TIMESTAMP:
            raise InvalidRequest(f"{timestamp_ms} is neither a time nor one of -1, -2, -3.")
        return self._search_time(partition, timestamp_ms, limit)

    async def _search_time(self, partition: Partition, timestamp_ms: int, limit: int) -> FoundOffset:
        """Look up an offset by time: reads indexes and a batch, which may wait for the disk."""
        log = partition.log

        def search() -> FoundOffset:
            if timestamp_ms == MAX_TIMESTAMP:
                found = log.max_timestamp(limit_offset=limit)
            else:
                found = log.find_time(timestamp_ms, limit_offset=limit)
            if found is None:
                return FoundOffset(-1, -1, NO_EPOCH)
            return FoundOffset(found.offset, found.timestamp_ms, found.epoch)

        try:
            return await self._offload.run(search)
        except CorruptMessage:
            self._metrics.log.corruptions += (
                1  # On the loop, not on the thread, because other code counts too.
            )
            raise

    def delete_records(self, tp: TopicPartition, offset: int, timeout_s: float) -> Maybe[int]:
        """Return the low watermark, once all in-sync replicas have deleted the records.

        Refused, as in Kafka, for topics whose records are state.
        """
        if tp.topic in INTERNAL_TOPICS:
            raise InvalidTopicException(f"{tp.topic} belongs to the cluster; its records are not deleted.")
        partition = self._host.find(tp)
        config = partition.log.config
        if config.compacts and not config.deletes:
            raise PolicyViolation(
                f"{tp.topic} is compacted: it drops a record when a newer one has the same key. Write tombstones, or "
                "add 'delete' to cleanup.policy."
            )
        return partition.delete_records(offset, timeout_s)

    def epoch_end(self, tp: TopicPartition, epoch: int, current_leader_epoch: int) -> EpochEnd:
        return self._host.find(tp).epoch_end(epoch, current_leader_epoch)

    def producers(self, tp: TopicPartition) -> list[ProducerDescription]:
        """The producers that the partition remembers, with their open transactions."""
        partition = self._host.find(tp)
        partition.check_leader()
        return partition.log.producers.described()

    async def init_producer_id(self) -> ProducerIdentity:
        """An identity for an idempotent producer without transactions."""
        return ProducerIdentity(await self._producer_ids.next(), 0)
