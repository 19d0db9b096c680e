"""Transactions that nobody ends: aborted after transaction.max.timeout.ms, so that the log moves on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from broker.one_partition import NOW_MS, World
from broker.replication.cluster import InlineOffload
from ottla_broker.config import LogDirsConfig
from ottla_broker.log.log import Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.partition.housekeeping import Housekeeping
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.topic_config import TopicConfig
from ottla_core.records.batch import header_at
from sim.batches import Rec, make_batch
from sim.disk import SimDisk

MINUTE_S = 60.0


def open_transaction(producer_id: int, *, timestamp: int = NOW_MS) -> bytes:
    return make_batch(
        [Rec(b"k", b"never committed", timestamp)],
        producer_id=producer_id,
        epoch=3,
        sequence=0,
        transactional=True,
    )


async def test_the_log_moves_on_after_the_timeout() -> None:
    world = World()
    config = replace(LogDirsConfig(), cleaner_backoff_ms=1000, retention_check_interval_ms=1000)
    partition = world.partition
    for producer_id in range(120):
        partition.append(open_transaction(producer_id), ACKS_ALL, NOW_MS, origin=AppendOrigin.TRANSACTION)
    world.fill(4)
    keeper = Housekeeping(world.host, world.dirs, config, world.clock, InlineOffload(), world.metrics.log)
    running = asyncio.create_task(keeper.run())
    try:
        for _ in range(14):
            await world.clock.advance(MINUTE_S)
        assert partition.stable_offset() == 0, "aborted before its time"
        assert [h.base_offset for h in partition.log.verify()] == list(range(124))
        for _ in range(3):
            await world.clock.advance(MINUTE_S)
        log = partition.log
        assert partition.stable_offset() == partition.high_watermark == log.end_offset == 124 + 120
        aborted = log.aborted(0, log.end_offset)
        assert sorted(one.producer_id for one in aborted) == list(range(120))
        log.roll(world.clock.wall_ms())
        await world.clock.advance(MINUTE_S)
        left = [h.base_offset for h in log.verify() if not h.is_control]
        assert len(left) < 124, "compaction has not gone on"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_age_of_a_transaction_survives_restarts() -> None:
    """Cleanly or not: by the timestamps in the snapshot and in the log."""
    for clean in (True, False):
        disk = SimDisk()
        disk.make_dirs("/t-0")
        log = Log.open(disk, "/t-0", TopicConfig(), clean=True, now_ms=NOW_MS)
        log.append(open_transaction(7), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.TRANSACTION)
        log.close(clean)
        again = Log.open(disk, "/t-0", TopicConfig(), clean=clean, now_ms=NOW_MS + 900)
        assert again.producers.stale_transactions(NOW_MS + 1000, 1000, 10) == []
        (stale,) = again.producers.stale_transactions(NOW_MS + 1001, 1000, 10)
        assert (stale.producer_id, stale.producer_epoch, stale.first_offset) == (7, 3, 0)
        assert header_at(open_transaction(7)).is_transactional
