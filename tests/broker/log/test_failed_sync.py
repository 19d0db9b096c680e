"""Every fsync of a log directory's life fails once, whichever it is: nothing is believed that may not be on the disk.

The kernel takes the pages of a failed fsync for clean: they are read as before, and a later fsync succeeds without
writing them. So the directory goes offline, is torn at the next start, and whatever that start vouches for must survive
a power loss.
"""

from __future__ import annotations

import copy
from uuid import UUID

import pytest

from budget import some
from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.log import Log
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import KafkaStorageError
from ottla_core.ids import TopicPartition
from ottla_core.real.chance import RealChance
from sim.batches import Rec, make_batch, read_batches
from sim.disk import SimDisk

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)
TOPIC = UUID(int=7)
CONFIG = TopicConfig(segment_bytes=300, index_interval_bytes=100)
BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: The last ones are flushed by nobody but the clean stop.
WRITES = 10


def _start(disk: SimDisk) -> LogDirs:
    dirs = LogDirs(disk, ["/a"], broker_id=0, chance=RealChance(3))
    dirs.open(now_ms=NOW_MS)
    dirs.join_cluster("cluster")
    return dirs


def _live(disk: SimDisk) -> int:
    """One life: writes, flushes, checkpoints and a clean stop. Gives how much it called durable."""
    dirs = _start(disk)
    durable = 0
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    try:
        for number in range(WRITES):
            log.append(make_batch([Rec(b"k", b"value %d" % number, NOW_MS)]), leader_epoch=0, now_ms=NOW_MS)
            if number % 3 == 1:
                log.flush()
                durable = log.recovery_point
            if number == WRITES // 2:
                dirs.checkpoint_work()()
    except KafkaStorageError:
        assert dirs.offline, "a log whose fsync failed takes its directory offline"
    dirs.close()
    return durable


def _contents(log: Log) -> list[bytes | None]:
    found = []
    for segment in log.segments:
        data = segment.file.read(0, segment.file.size())
        found += [record.value for _, record in read_batches(data)]
    return found


def _written(count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(count)]


def _syncs(operation: str) -> int:
    disk = _machine()
    before = disk.counts[operation]
    _live(disk)
    return disk.counts[operation] - before


def _machine() -> SimDisk:
    """The directory has joined its cluster, and the machine says which boot this is."""
    disk = SimDisk()
    disk.make_dirs(BOOT_ID.rpartition("/")[0])
    disk.write_file(BOOT_ID, b"this boot")
    _start(disk).close()
    return disk


@pytest.mark.parametrize("operation", ["sync", "sync_dir"])
def test_whichever_fsync_fails_nothing_is_believed_that_may_be_lost(operation: str) -> None:
    total = _syncs(operation)
    assert total > 5
    for at in some(range(total)):
        disk = _machine()
        disk.fail(operation, after=at)
        try:
            durable = _live(disk)
        except OSError:
            durable = 0  # Not even opened, or nothing could be created in it.
        where = f"{operation} {at} of {total}"
        disk.kill()
        for seed in range(3):
            _check_next_life(copy.deepcopy(disk), durable, seed, where)


def _check_next_life(disk: SimDisk, durable: int, seed: int, where: str) -> None:
    lost = copy.deepcopy(disk)
    lost.crash(RealChance(seed))
    assert _end_after(lost) >= durable, f"{where}: power was lost at once"
    dirs = _start(disk)
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.flush()
    dirs.checkpoint_work()()
    promised = log.recovery_point
    assert promised == log.end_offset >= durable, where
    assert _contents(log) == _written(promised), where
    disk.crash(RealChance(seed))
    assert _end_after(disk) >= promised, f"{where}: the start after it vouched for {promised}"


def _end_after(disk: SimDisk) -> int:
    """The end offset after a start; what is there is what was written."""
    dirs = _start(disk)
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    assert _contents(log) == _written(log.end_offset)
    return log.end_offset


def test_a_directory_whose_fsync_failed_at_the_stop_is_torn() -> None:
    disk = _machine()
    dirs = _start(disk)
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.append(make_batch([Rec(b"k", b"value 0", NOW_MS)]), leader_epoch=0, now_ms=NOW_MS)
    disk.fail("sync", ".log")
    dirs.close()
    disk.kill()
    again = _start(disk)
    assert again.dirs[0].is_torn and again.dirs[0].has_failed
