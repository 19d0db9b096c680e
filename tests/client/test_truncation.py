"""Logs that an unclean election has truncated: the consumer and Spark's fetch notice it (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from client.fake_services import FakeCluster, FakePartition, FakeRecords
from ottla_broker.requests import EpochEnd, FoundOffset, Maybe
from ottla_client import Consumer
from ottla_client.cluster import Cluster
from ottla_client.errors import LogTruncated
from ottla_client.leaders import list_offsets
from ottla_client.record import OffsetAndMetadata
from ottla_core.errors import UnknownLeaderEpoch
from ottla_core.ids import TopicPartition
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock
from ottla_core.records.codec import Record, build_batch
from pyspark_ottla.fetch import Lost, PartitionFetch
from pyspark_ottla.plan import OffsetRange

TP = TopicPartition("t", 0)
#: Records before the truncation, and the offset where the log is cut.
RECORDS, CUT = 6, 4


def write(cluster: FakeCluster, broker: int, *values: bytes) -> None:
    for value in values:
        cluster.brokers[broker].records.append(TP, bytes(build_batch([Record(0, 1, None, value, [])])), 1)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(2) as made:
        made.add_topic("t", leaders=[0])
        write(made, 0, *(b"old%d" % n for n in range(RECORDS)))
        yield made


def truncate(cluster: FakeCluster, patch: pytest.MonkeyPatch, at: int = CUT) -> None:
    """Broker 1 is elected, lacks records from `at` on, and gets others."""
    partition = cluster.partitions[TP]
    partition.batches, partition.end = partition.batches[:at], at
    patch.setattr(FakeRecords, "epoch_end", lambda *_: EpochEnd(0, at))
    cluster.move_leader(TP, 1)
    write(cluster, 1, *(b"new%d" % n for n in range(at, RECORDS + 2)))


async def read(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    async with asyncio.timeout(30):
        while len(values) < count:
            values += [record.value for record in await consumer.poll(timeout_ms=100)]
    return values


async def test_the_consumer_continues_where_the_logs_diverge(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TP])
        assert len(await read(consumer, RECORDS)) == RECORDS
        truncate(cluster, monkeypatch)
        assert await read(consumer, 4) == [b"new4", b"new5", b"new6", b"new7"]
    assert "no longer contains" in caplog.text and "offset 4" in caplog.text


async def test_without_a_reset_policy_the_consumer_raises(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Consumer(cluster.address, auto_offset_reset="none") as consumer:
        consumer.assign([TP])
        consumer.seek(TP, 0)
        assert len(await read(consumer, RECORDS)) == RECORDS
        truncate(cluster, monkeypatch)
        with pytest.raises(LogTruncated, match="before offset 6"):
            await read(consumer, 1)


async def test_a_truncation_between_commit_and_restart_is_noticed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def committed(_: object) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return {TP: OffsetAndMetadata(RECORDS, leader_epoch=0)}

    truncate(cluster, monkeypatch)
    async with Consumer(cluster.address, auto_offset_reset="none") as consumer:
        consumer._fetcher.find_committed = committed
        consumer._machine.assign([TP], committed=True)
        with pytest.raises(LogTruncated, match="before offset 6"):
            await read(consumer, 1)


async def test_a_spark_task_fails_with_lost_records(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.max_fetch_bytes = 1  # one batch in each response
    wanted = OffsetRange(TP, 0, RECORDS)
    fetch = PartitionFetch(cluster.address, wanted, read_committed=False, timeout_s=30)
    fetch._cluster = Cluster(
        cluster.address, clock=RealClock(), chance=RealChance(), request_timeout_s=30
    )  # which `chunks` borrows from the worker
    await fetch._cluster.open()
    try:
        await fetch._open()
        await fetch._next()
        truncate(
            cluster, monkeypatch, at=0
        )  # before all that was read, also if the next response is in flight
        with pytest.raises(Lost, match="no longer contains"):
            for _ in range(RECORDS):
                await fetch._next()
    finally:
        await fetch._close()
        await fetch._cluster.close()


async def test_a_spark_task_whose_log_ends_before_the_planned_end_fails_soon(cluster: FakeCluster) -> None:
    """The records were lost before the first fetch, which then sees nothing but a log that is too short."""
    wanted = OffsetRange(TP, 2, RECORDS + 3)
    fetch = PartitionFetch(cluster.address, wanted, read_committed=False, timeout_s=30)
    fetch._cluster = Cluster(cluster.address, clock=RealClock(), chance=RealChance(), request_timeout_s=30)
    await fetch._cluster.open()
    try:
        await fetch._open()
        assert (await fetch._next()).batches, "what is there is read"
        async with asyncio.timeout(10):
            with pytest.raises(Lost, match="t-0 ends at offset 6, before offset 9, which existed"):
                await fetch._next()
    finally:
        await fetch._close()
        await fetch._cluster.close()


class CutOff(FakeRecords):
    """Of a leader that is cut off from the cluster: it has the records of then, and its leader epoch."""

    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        super().__init__(cluster, broker_id)
        then = cluster.partitions[TP]
        self._then = FakePartition(then.start, then.end, list(then.batches))
        self._epoch = cluster.image.topics[TP.topic].partitions[TP.partition].leader_epoch

    def _find(self, tp: TopicPartition) -> FakePartition:
        return self._then

    def list_offset(
        self, tp: TopicPartition, timestamp_ms: int, *, leader_epoch: int = -1, read_committed: bool = False
    ) -> Maybe[FoundOffset]:
        if leader_epoch > self._epoch:
            raise UnknownLeaderEpoch()
        return super().list_offset(tp, timestamp_ms, leader_epoch=leader_epoch, read_committed=read_committed)


async def test_a_spark_task_does_not_believe_the_end_of_a_leader_that_is_cut_off(
    cluster: FakeCluster,
) -> None:
    old = cluster.brokers[0]
    fetch = PartitionFetch(
        cluster.address, OffsetRange(TP, 0, RECORDS + 2), read_committed=False, timeout_s=30
    )
    fetch._cluster = Cluster(cluster.address, clock=RealClock(), chance=RealChance(), request_timeout_s=30)
    await fetch._cluster.open()
    try:
        await fetch._open()
        old.records, old.old_image = CutOff(cluster, 0), cluster.image
        cluster.move_leader(TP, 1)
        write(cluster, 1, b"new6", b"new7")
        offsets: list[int] = []
        async with asyncio.timeout(20):
            while fetch._position < RECORDS + 2:
                offsets += [header.base_offset for _, header in (await fetch._next()).batches]
        assert offsets == list(range(RECORDS + 2))
    finally:
        await fetch._close()
        await fetch._cluster.close()


async def test_a_leader_that_does_not_know_its_epoch_yet_is_not_asked_for_an_end(
    cluster: FakeCluster,
) -> None:
    """It is elected again, which it learns later than the client."""
    cluster.brokers[0].records = CutOff(cluster, 0)
    cluster.move_leader(TP, 0)
    async with Consumer(cluster.address) as consumer:
        view, clock = consumer._cluster, RealClock()
        await view.refresh([TP.topic], timeout_s=10)
        assert (await list_offsets(view, clock, {TP: -1}, timeout_s=1))[TP].offset == RECORDS
        with pytest.raises(UnknownLeaderEpoch):
            await list_offsets(view, clock, {TP: -1}, timeout_s=1, fenced=True)
