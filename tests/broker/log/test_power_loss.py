"""Each flush setting keeps what docs/durability.md promises, on a disk that forgets and tears what was not
synced.

A partition with its log runs on the simulated disk; at random moments, also in the middle of an fsync, the
power goes in a copy of the world, and the copy is opened again. What was acknowledged by then is compared
with what is left.

The table in the docs has "may be lost" too: a setting that promises less must really lose something here, or
the docs (or this test) would be too careful. And a planted missing sync must be noticed.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import pytest

from budget import some
from ottla_broker.log.log import Log
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.metrics import Metrics
from ottla_broker.partition.partition import Partition
from ottla_broker.topic_config import TopicConfig
from ottla_core.ids import TopicPartition
from ottla_core.real.chance import RealChance
from sim.batches import CODECS, Rec, make_batch, read_batches
from sim.clock import ManualClock
from sim.disk import SimDisk, SimFile

T = TypeVar("T")
PATH = "/data/t-0"
NOW_MS = 1_700_000_000_000
SMALL = {"segment_bytes": 2000, "index_interval_bytes": 200}
LEADER = PartitionImage(replicas=(0,), leader=0, leader_epoch=1, isr=(0,))
SEEDS = some(range(12))


class HeldOffload:
    """Runs work inline, but the answer, and sometimes the work itself, waits until `release`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._gate = asyncio.Event()

    async def run(self, work: Callable[[], T]) -> T:
        if self._chance.random() < 0.5:
            await self._gate.wait()
        result = work()
        if self._chance.random() < 0.5:
            await self._gate.wait()
        return result

    def release(self) -> None:
        self._gate.set()
        self._gate = asyncio.Event()


class Broker:
    """One partition, led by this broker, and what its clients were told."""

    def __init__(
        self,
        config: TopicConfig,
        chance: random.Random,
        disk: SimDisk | None = None,
        log_type: type[Log] = Log,
    ) -> None:
        self.disk = disk or SimDisk()
        self.disk.make_dirs("/data")
        SimDisk.sync_dir(self.disk, "/")
        self.config = config
        self.clock = ManualClock(NOW_MS)
        self.offload = HeldOffload(chance)
        self.log = log_type.open(self.disk, PATH, config, clean=True, now_ms=NOW_MS)
        self.partition = Partition(
            TopicPartition("t", 0), UUID(int=5), self.log, self.offload, self.clock, Metrics()
        )
        self.partition.lead(LEADER)
        self.written: list[tuple[int, Rec]] = []
        self.acknowledged: set[int] = set()
        self.tasks: list[asyncio.Task[None]] = []

    def write(self, records: list[Rec], codec: str, acks: int) -> None:
        appended = self.partition.append(make_batch(records, codec=codec), acks, self.clock.wall_ms())
        offsets = range(appended.base_offset, appended.last_offset + 1)
        self.written += zip(offsets, records, strict=True)
        waiting = self.partition.acknowledged(appended, acks, 60.0)
        if waiting is None:
            self.acknowledged.update(offsets)
            return

        async def wait() -> None:
            await waiting
            self.acknowledged.update(offsets)

        self.tasks.append(asyncio.get_running_loop().create_task(wait()))

    async def settle(self) -> None:
        """Let everything happen that is allowed to."""
        for _ in range(20):
            self.offload.release()
            for _ in range(8):
                await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.settle()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def left_after(self, die: Callable[[SimDisk], None], *, recovery_point: int) -> int:
        """The end offset after death and recovery in a copy of the world; what is left must be whole."""
        disk = copy.deepcopy(self.disk)
        die(disk)
        disk.make_dirs("/data")
        log = Log.open(
            disk, PATH, self.config, clean=False, recovery_point=recovery_point, now_ms=self.clock.wall_ms()
        )
        found: list[tuple[int, Rec]] = []
        offset = log.start_offset
        while (extent := log.read(offset, 1 << 20, limit_offset=log.end_offset)) is not None:
            data = extent.file.read(extent.position, extent.size)
            found += read_batches(data)
            offset = found[-1][0] + 1
        assert found == self.written[: log.end_offset]
        return log.end_offset

    def lost_by_power_loss(self, chance: random.Random) -> int:
        """How many acknowledged records are gone."""
        seen = self.partition.high_watermark
        point = self.log.recovery_point if chance.random() < 0.5 else 0
        end = self.left_after(
            lambda disk: disk.crash(RealChance(chance.getrandbits(32))), recovery_point=point
        )
        if self.config.flush_before_ack:
            assert seen <= end, "a reader saw what a power loss took back"
        return sum(offset >= end for offset in self.acknowledged)


@dataclass
class Survey:
    #: The most acknowledged records lost at one moment.
    lost_max: int = 0
    moments: int = 0
    acknowledged: int = 0


async def survey(
    config: TopicConfig, *, acks: int = 1, disk_type: type[SimDisk] = SimDisk, log_type: type[Log] = Log
) -> Survey:
    """Many random lives of a partition, each ended by many power losses."""
    result = Survey()
    for seed in SEEDS:
        chance = random.Random(seed)
        broker = Broker(config, chance, disk_type(), log_type)
        for step in range(25):
            records = [
                Rec(b"k", chance.randbytes(chance.randrange(120)), NOW_MS)
                for _ in range(chance.randint(1, 4))
            ]
            broker.write(records, chance.choice(sorted(CODECS)), acks)
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if chance.random() < 0.4:
                broker.offload.release()
                await asyncio.sleep(0)
            if step % 3 == 0:
                result.lost_max = max(result.lost_max, broker.lost_by_power_loss(chance))
                result.moments += 1
        await broker.settle()
        result.lost_max = max(result.lost_max, broker.lost_by_power_loss(chance))
        result.acknowledged += len(broker.acknowledged)
        await broker.stop()
    assert result.acknowledged > 100, "hardly anything was acknowledged: this proves nothing"
    return result


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize(
    ("settings", "lost_at_most"),
    [
        ({"flush_before_ack": True}, 0),
        ({"flush_messages": 1}, 0),
        ({"flush_messages": 10}, 9),
    ],
    ids=["flush.before.ack", "flush.messages=1", "flush.messages=10"],
)
async def test_what_is_promised_is_kept(settings: dict[str, int], lost_at_most: int, acks: int) -> None:
    found = await survey(TopicConfig(**SMALL, **settings), acks=acks)
    assert found.lost_max <= lost_at_most
    if lost_at_most:
        assert found.lost_max > 0, "the docs promise too little, or this test looks too little"


async def test_without_flush_settings_a_power_loss_may_take_acknowledged_records() -> None:
    assert (await survey(TopicConfig(**SMALL))).lost_max > 10


async def test_flush_ms_bounds_the_age_of_what_is_lost() -> None:
    chance = random.Random(1)
    broker = Broker(TopicConfig(**SMALL, flush_ms=50), chance)
    for _ in range(20):
        broker.write([Rec(b"k", b"v", NOW_MS)], "none", 1)
    assert any(broker.lost_by_power_loss(chance) for _ in range(20))
    await asyncio.sleep(0.06)
    await broker.settle()
    assert not any(broker.lost_by_power_loss(chance) for _ in range(20))
    broker.write([Rec(b"k", b"young", NOW_MS)], "none", 1)
    assert any(broker.lost_by_power_loss(chance) == 1 for _ in range(20))
    await broker.stop()


@pytest.mark.parametrize(
    "settings", [{}, {"flush_messages": 10}, {"flush_before_ack": True}], ids=["none", "n", "before ack"]
)
async def test_kill_takes_nothing_whatever_the_setting(settings: dict[str, int]) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        broker = Broker(TopicConfig(**SMALL, **settings), chance)
        for _ in range(20):
            broker.write([Rec(b"k", chance.randbytes(50), NOW_MS)], "none", 1)
            await asyncio.sleep(0)
            point = broker.log.recovery_point
            assert broker.left_after(SimDisk.kill, recovery_point=point) == broker.log.end_offset
        await broker.stop()


async def test_one_fsync_serves_all_waiters() -> None:
    chance = random.Random(0)
    broker = Broker(TopicConfig(flush_before_ack=True), chance)
    broker.write([Rec(b"k", b"first", NOW_MS)], "none", 1)
    await broker.settle()
    before = broker.disk.counts["sync"]
    for _ in range(50):
        broker.write([Rec(b"k", b"v", NOW_MS)], "none", 1)
    assert len(broker.acknowledged) == 1
    await broker.settle()
    assert len(broker.acknowledged) == 51
    assert broker.disk.counts["sync"] - before <= 6
    await broker.stop()


async def test_a_failed_fsync_acknowledges_nothing_and_ends_the_log() -> None:
    broker = Broker(TopicConfig(flush_before_ack=True), random.Random(0))
    broker.disk.fail("sync", ".log")
    broker.write([Rec(b"k", b"v", NOW_MS)], "none", -1)
    await broker.settle()
    assert not broker.acknowledged
    assert broker.log.broken is not None
    await broker.stop()


def test_what_was_cut_does_not_come_back_behind_what_was_written_since() -> None:
    """Batches of one size, so that the old ones would fit exactly behind the new one."""

    def batch(text: bytes) -> bytes:
        return make_batch([Rec(b"k", text, NOW_MS)])

    disk = SimDisk()
    disk.make_dirs("/data")
    disk.sync_dir("/")
    log = Log.open(disk, PATH, TopicConfig(), clean=True, now_ms=NOW_MS)
    for number in range(6):
        log.append(batch(b"old%d" % number), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    log.truncate_to(2)
    log.append(batch(b"new2"), leader_epoch=1, now_ms=NOW_MS)
    outcomes = set()
    for seed in range(60):
        lost = copy.deepcopy(disk)
        lost.crash(RealChance(seed))
        again = Log.open(lost, PATH, TopicConfig(), clean=False, recovery_point=2, now_ms=NOW_MS)
        file = again.active.file
        outcomes.add(tuple(record.value for _, record in read_batches(file.read(0, file.size()))))
    assert outcomes == {(b"old0", b"old1"), (b"old0", b"old1", b"new2")}


# ---------------------------------------------------------------------- planted bugs, which must be found


class _LazyFile(SimFile):
    def sync(self) -> None:
        """Says done, does nothing."""


class NoFileSync(SimDisk):
    def open(self, path: str, *, create: bool = False) -> SimFile:
        super().open(path, create=create)
        node = self._find(path)
        return _LazyFile(self, path, node)  # type: ignore[arg-type]


class NoFolderSync(SimDisk):
    def sync_dir(self, path: str) -> None:
        """Says done, does nothing."""


class FlushesTooLittle(Log):
    """Forgets the segments before the active one: right until the first roll."""

    def flush_work(self, upto: int | None = None) -> Callable[[], None]:
        super().flush_work(upto)
        return self.active.file.sync


class FlushesTooEarly(Log):
    """Counts as flushed what was appended while the fsync ran."""

    def mark_flushed(self, upto: int) -> None:
        super().mark_flushed(self.end_offset)


@pytest.mark.parametrize(
    ("disk_type", "log_type"),
    [
        (NoFileSync, Log),
        (NoFolderSync, Log),
        (SimDisk, FlushesTooLittle),
        (SimDisk, FlushesTooEarly),
    ],
    ids=["no fsync", "no fsync of the folder", "only the active segment", "counted too early"],
)
async def test_a_missing_sync_is_noticed(disk_type: type[SimDisk], log_type: type[Log]) -> None:
    config = TopicConfig(**SMALL, flush_before_ack=True)
    try:
        found = await survey(config, disk_type=disk_type, log_type=log_type)
    except AssertionError as error:
        assert "a reader saw" in str(error)
    else:
        assert found.lost_max > 0
