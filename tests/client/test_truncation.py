"""Logs that an unclean election has truncated: the consumer and Spark's fetch notice it (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from client.fake_services import FakeCluster, FakeRecords
from ottla_broker.requests import EpochEnd
from ottla_client import Consumer
from ottla_client.cluster import Cluster
from ottla_client.errors import LogTruncated
from ottla_client.record import OffsetAndMetadata
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
