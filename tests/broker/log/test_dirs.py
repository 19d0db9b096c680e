"""Log directories: whose they are, what they remember, and what happens when one fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import pytest

from ottla_broker.log.dir_files import ForeignDirectory, parse_folder
from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.properties import (
    BadProperties,
    decode_meta,
    decode_partition_metadata,
    decode_uuid,
    encode_uuid,
)
from ottla_broker.metrics import LogProbe
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import KafkaStorageError
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Disk
from ottla_core.real.chance import RealChance
from sim.batches import Rec, make_batch, make_marker
from sim.disk import SimDisk, Stopped
from sim.places import Place

NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig()
TOPIC, OTHER = UUID(int=5 << 64), UUID(int=6 << 64)
TP = TopicPartition("orders-eu.v2", 3)
BATCH = make_batch([Rec(b"k", b"v", NOW_MS)] * 3, producer_id=1, epoch=0, sequence=0)


def start(disk: Disk, *paths: str, broker_id: int = 1, cluster: str = "c") -> LogDirs:
    dirs = LogDirs(disk, paths, broker_id=broker_id, chance=RealChance(7))
    dirs.open(now_ms=NOW_MS)
    dirs.join_cluster(cluster)
    return dirs


def two(place: Place) -> tuple[str, str]:
    return f"{place.path}/a", f"{place.path}/b"


def test_a_new_directory_gets_an_identity_that_stays(place: Place) -> None:
    dirs = start(place.disk, *two(place))
    ids = dirs.ids
    assert len(set(ids)) == 2
    identity = decode_meta(place.disk.read_file(f"{place.path}/a/meta.properties"))
    assert identity == ("c", 1, ids[0])
    dirs.close()
    again = LogDirs(place.disk, two(place), broker_id=1, chance=RealChance(8))
    again.open(now_ms=NOW_MS)
    assert (again.cluster_id, again.ids) == ("c", ids)


def test_foreign_directories_are_refused_with_a_sentence_and_not_touched(place: Place) -> None:
    path = f"{place.path}/a"
    start(place.disk, path).close()
    before = place.disk.list(path)
    with pytest.raises(ForeignDirectory, match="broker 1"):
        start(place.disk, path, broker_id=2)
    with pytest.raises(ForeignDirectory, match="cluster c"):
        start(place.disk, path, cluster="d")
    place.disk.write_file(f"{path}/meta.properties", b"version=2\n")
    with pytest.raises(ForeignDirectory, match="version is 2"):
        start(place.disk, path)
    assert [n for n in place.disk.list(path) if n not in before] == []
    place.disk.remove(f"{path}/meta.properties")
    place.disk.make_dirs(f"{path}/t-0")
    with pytest.raises(ForeignDirectory, match=r"no meta\.properties"):
        start(place.disk, path)


def test_partitions_go_where_fewest_are(place: Place) -> None:
    dirs = start(place.disk, *two(place))
    for number in range(6):
        dirs.get_or_create(TopicPartition("t", number), TOPIC, CONFIG, now_ms=NOW_MS)
    assert [len(d.folders) for d in dirs.dirs] == [3, 3]
    dirs.sync_created()
    folder = f"{place.path}/a/t-0"
    assert decode_partition_metadata(place.disk.read_file(f"{folder}/partition.metadata")) == TOPIC
    assert (
        dirs.get_or_create(TopicPartition("t", 0), TOPIC, CONFIG, now_ms=NOW_MS)
        is dirs.logs[TopicPartition("t", 0)]
    )


def test_a_clean_stop_is_remembered(place: Place) -> None:
    dirs = start(place.disk, *two(place))
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.append(BATCH, leader_epoch=4, now_ms=NOW_MS)
    log.advance_start(2)
    dirs.cleaner_offsets[TP] = 1
    dirs.history = (2, 77)
    dirs.close({TP: 3})
    assert (
        place.disk.read_file(f"{place.path}/a/recovery-point-offset-checkpoint")
        == b"0\n1\norders-eu.v2 3 3\n"
    )
    assert place.disk.read_file(f"{place.path}/a/log-start-offset-checkpoint") == b"0\n1\norders-eu.v2 3 2\n"
    assert (
        place.disk.read_file(f"{place.path}/a/replication-offset-checkpoint") == b"0\n1\norders-eu.v2 3 3\n"
    )
    again = start(place.disk, *two(place))
    assert not place.disk.exists(f"{place.path}/a/.kafka_cleanshutdown"), "the marker is for one start only"
    assert (again.high_watermark(TP), again.cleaner_offsets, again.history, again.torn) == (
        3,
        {TP: 1},
        (2, 77),
        (),
    )
    log = again.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    assert (log.start_offset, log.end_offset, log.recovery_point) == (2, 3, 3)
    assert log.append(BATCH, leader_epoch=5, now_ms=NOW_MS).duplicate
    assert not log.active.is_loaded, "nothing but the checkpoint was needed"


def test_a_revision_without_recoveries_is_that_of_an_older_version(place: Place) -> None:
    start(place.disk, *two(place)).close()
    place.disk.write_file(f"{place.path}/a/metadata-revision", b"41")
    assert start(place.disk, *two(place)).history == (0, 41)


def test_a_dirty_stop_is_scanned() -> None:
    disk = SimDisk()
    log = start(disk, "/a").get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.append(BATCH, leader_epoch=4, now_ms=NOW_MS)
    log.active.file.append([b"torn"])
    disk.kill()
    again = start(disk, "/a")
    log = again.get_or_create(TP, TOPIC, TopicConfig(segment_bytes=12345), now_ms=NOW_MS)
    assert (log.end_offset, log.recovery_point, log.active.size) == (3, 3, len(BATCH))
    assert log.config.segment_bytes == 12345
    assert again.torn == again.ids, "a simulated machine has no boot id: nobody knows"


def test_a_kill_on_a_running_machine_tears_nothing(place: Place) -> None:
    dirs = start(place.disk, f"{place.path}/a")
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(ForeignDirectory, match="used by another process"):
        start(place.disk, f"{place.path}/a")
    dirs.abandon()
    again = start(place.disk, f"{place.path}/a")
    if place.disk.exists("/proc/sys/kernel/random/boot_id"):
        assert again.torn == ()
        place.disk.write_file(f"{place.path}/a/boot-id", b"another boot")
        again.abandon()
        assert start(place.disk, f"{place.path}/a").torn == again.ids


def test_a_log_that_was_never_opened_keeps_its_clean_stop() -> None:
    disk = SimDisk()
    dirs = start(disk, "/a")
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    dirs.close()
    start(disk, "/a").close()
    assert TP in start(disk, "/a").dirs[0].clean


def test_another_topic_of_the_same_name_sets_the_old_one_aside(place: Place) -> None:
    dirs = start(place.disk, f"{place.path}/a")
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    dirs.close()
    again = start(place.disk, f"{place.path}/a")
    log = again.get_or_create(TP, OTHER, CONFIG, now_ms=NOW_MS)
    assert (log.start_offset, log.end_offset) == (0, 0)
    (stray,) = [n for n in place.disk.list(f"{place.path}/a") if n.endswith("-stray")]
    assert f"{0:020d}.log" in place.disk.list(f"{place.path}/a/{stray}")
    again.close()
    assert [n for n in place.disk.list(f"{place.path}/a") if n.endswith("-stray")] == [stray]


@pytest.mark.parametrize("content", [None, b"", b"version: 0\n", b"version: 0\ntopic_id: !!", b"version: 9"])
def test_a_folder_without_a_readable_id_is_set_aside(place: Place, content: bytes | None) -> None:
    dirs = start(place.disk, f"{place.path}/a")
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    dirs.close()
    metadata = f"{place.path}/a/{TP}/partition.metadata"
    place.disk.remove(metadata) if content is None else place.disk.write_file(metadata, content)
    again = start(place.disk, f"{place.path}/a")
    assert again.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).end_offset == 0
    assert [n for n in place.disk.list(f"{place.path}/a") if n.endswith("-stray")]


def test_an_empty_folder_is_just_used(place: Place) -> None:
    start(place.disk, f"{place.path}/a").close()
    place.disk.make_dirs(f"{place.path}/a/{TP}")
    dirs = start(place.disk, f"{place.path}/a")
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    assert not [n for n in place.disk.list(f"{place.path}/a") if n.endswith("-stray")]


def test_removed_partitions_go_later_and_for_good(place: Place) -> None:
    dirs = start(place.disk, f"{place.path}/a")
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    dirs.remove(TP, OTHER, now_ms=NOW_MS)
    assert TP in dirs.logs, "it goes by id, not by name"
    dirs.remove(TP, TOPIC, now_ms=NOW_MS)
    assert dirs.get_or_create(TP, OTHER, CONFIG, now_ms=NOW_MS).end_offset == 0
    dirs.purge_removed(NOW_MS + 59_999)
    assert [n for n in place.disk.list(f"{place.path}/a") if n.endswith("-delete")]
    dirs.purge_removed(NOW_MS + 60_000)
    assert not [n for n in place.disk.list(f"{place.path}/a") if n.endswith("-delete")]
    dirs.remove(TP, OTHER, now_ms=NOW_MS)
    dirs.close()
    start(place.disk, f"{place.path}/a")
    assert not [n for n in place.disk.list(f"{place.path}/a") if n.endswith("-delete")]


def test_a_long_topic_name_can_be_removed(place: Place) -> None:
    dirs, tp = start(place.disk, f"{place.path}/a"), TopicPartition("x" * 249, 10)
    dirs.get_or_create(tp, TOPIC, CONFIG, now_ms=NOW_MS)
    dirs.remove(tp, TOPIC, now_ms=NOW_MS)
    assert max(map(len, place.disk.list(f"{place.path}/a"))) <= 255


# ---------------------------------------------------------------------- failing


def test_a_failed_directory_takes_only_its_own_partitions(place: Place) -> None:
    disk = SimDisk()
    dirs = start(disk, "/a", "/b")
    logs = [dirs.get_or_create(TopicPartition("t", n), TOPIC, CONFIG, now_ms=NOW_MS) for n in range(4)]
    disk.fail("append", "/a/t-0/00000000000000000000.log", errno.EIO)
    with pytest.raises(KafkaStorageError):
        logs[0].append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    assert [log.broken is not None for log in logs] == [True, False, True, False]
    assert [d.path for d in dirs.offline] == ["/a"]
    logs[1].append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    for number in range(4, 8):
        log = dirs.get_or_create(TopicPartition("t", number), TOPIC, CONFIG, now_ms=NOW_MS)
        assert log.path.startswith("/b/")
    dirs.close()
    assert disk.exists("/b/.kafka_cleanshutdown") and not disk.exists("/a/.kafka_cleanshutdown")
    dirs.fail(dirs.dirs[1], OSError())
    with pytest.raises(OSError, match="offline"):
        dirs.get_or_create(TopicPartition("u", 1), TOPIC, CONFIG, now_ms=NOW_MS)


def test_a_directory_that_cannot_be_read_may_hold_any_partition() -> None:
    disk = SimDisk()
    start(disk, "/a", "/b").close()
    disk.fail("open", "meta.properties", errno.EIO)
    dirs = start(disk, "/a", "/b")
    assert [d.path for d in dirs.online] == ["/b"]
    with pytest.raises(OSError, match="may be in /a"):
        dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    assert dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS, new=True).path.startswith("/b/")


def test_no_directory_at_all_is_an_error() -> None:
    disk = SimDisk()
    start(disk, "/a").close()
    disk.fail("open", "meta.properties", errno.EIO)
    with pytest.raises(OSError, match="none of the log directories"):
        start(disk, "/a")


def test_a_checkpoint_that_cannot_be_written_takes_the_directory_offline() -> None:
    disk = SimDisk()
    dirs = start(disk, "/a", "/b")
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    disk.fail("write_file", "/a/recovery-point-offset-checkpoint")
    dirs.checkpoint_work()()
    assert log.broken is not None
    assert [d.path for d in dirs.online] == ["/b"]


def test_power_loss_around_a_clean_stop() -> None:
    """The marker is never there without the logs, and never twice."""
    for seed in range(40):
        disk = SimDisk()
        dirs = start(disk, "/a")
        dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).append(BATCH, leader_epoch=0, now_ms=NOW_MS)
        dirs.close()
        disk.crash(RealChance(seed))
        dirs = start(disk, "/a")
        log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
        assert log.end_offset == 3
        log.append(make_batch([Rec(b"k", b"x", NOW_MS)]), leader_epoch=1, now_ms=NOW_MS)
        disk.crash(RealChance(seed + 1000))
        again = start(disk, "/a")
        assert not again.dirs[0].clean, "what was written after the start makes it dirty"
        assert again.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).end_offset in (3, 4)


# ---------------------------------------------------------------------- names and formats


def test_folder_names() -> None:
    assert parse_folder("a-b.c-17") == TopicPartition("a-b.c", 17)
    for other in ("meta.properties", "t-0.abc-delete", "t", "-1", "t-", "t-x", "t-²", "t-0.00ff-stray"):
        assert parse_folder(other) is None


def test_uuids_are_spelt_as_kafka_does() -> None:
    value = UUID("4d2b7fbe-3a2f-4f35-9d5f-1c2e3a4b5c6d")
    assert decode_uuid(encode_uuid(value)) == value
    assert len(encode_uuid(value)) == 22
    with pytest.raises(BadProperties):
        decode_uuid("short")


@pytest.mark.parametrize("late", [False, True])
def test_marks_of_a_deleted_topic_are_not_those_of_its_namesake(late: bool) -> None:
    """Seed 135: killed before the next checkpoint, a broker took the old topic's marks for the new one's."""
    disk = SimDisk()
    path = "/data/log"
    dirs = start(disk, path)
    old = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    old.append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    old.flush()
    note = dirs.checkpoint_work({TP: 3})
    if not late:
        note()
    dirs.remove(TP, TOPIC, now_ms=NOW_MS)
    new = dirs.get_or_create(TP, OTHER, CONFIG, now_ms=NOW_MS)
    new.append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    if late:
        note()  # A thread was slow: it writes what was noted before the topic went.
    disk.kill()
    again = start(disk, path)
    assert again.get_or_create(TP, OTHER, CONFIG, now_ms=NOW_MS).end_offset == 3
    assert again.high_watermark(TP) is None
    assert TP not in again.dirs[0].recovery_points


def test_a_new_topic_gets_no_marks_of_one_that_was_deleted_in_an_earlier_life() -> None:
    disk = SimDisk()
    path = "/data/log"
    dirs = start(disk, path)
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    dirs.checkpoint_work({TP: 3})()
    dirs.remove(TP, TOPIC, now_ms=NOW_MS)
    disk.kill()
    again = start(disk, path)
    again.get_or_create(TP, OTHER, CONFIG, now_ms=NOW_MS)
    assert again.high_watermark(TP) is None


def test_marks_are_believed_after_a_kill() -> None:
    disk = SimDisk()
    dirs = start(disk, "/data/log")
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    dirs.checkpoint_work({TP: 2})()
    disk.kill()
    assert start(disk, "/data/log").high_watermark(TP) == 2


def test_a_torn_directory_stays_torn_until_the_cluster_knows_it() -> None:
    """Seed 255: power was lost, and the next life died before it was admitted; the one after it passed for whole."""
    disk, path = SimDisk(), "/data/log"
    disk.make_dirs("/proc/sys/kernel/random")
    boot = "/proc/sys/kernel/random/boot_id"
    disk.write_file(boot, b"first")
    start(disk, path)
    disk.kill()
    assert start(disk, path).torn == ()
    disk.kill()
    disk.write_file(boot, b"second")
    for _ in range(2):
        dirs = start(disk, path)
        assert dirs.torn == dirs.ids
        disk.kill()
    dirs = start(disk, path)
    dirs.note_admitted()
    disk.kill()
    assert start(disk, path).torn == ()


def on_one_boot() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs("/proc/sys/kernel/random")
    disk.write_file("/proc/sys/kernel/random/boot_id", b"first")
    return disk


def test_a_directory_that_has_failed_is_torn_until_the_cluster_knows_it() -> None:
    """Rule 2: a write error, too, may have cost a log its tail, if the kernel needs the memory of its pages."""
    disk, path = on_one_boot(), "/data/log"
    log = start(disk, path).get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    disk.fail("sync", ".log")
    with pytest.raises(KafkaStorageError):
        log.flush()
    disk.kill()
    for _ in range(2):
        dirs = start(disk, path)
        assert dirs.torn == dirs.ids
        assert dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).end_offset == 3
        disk.kill()
    start(disk, path).note_admitted()
    disk.kill()
    assert start(disk, path).torn == ()


def test_a_directory_in_which_more_than_a_half_written_batch_is_cut_is_torn() -> None:
    """Bits rot, and the broker is killed: the scan cuts what was acknowledged, and nobody may count on the rest."""
    disk, path = on_one_boot(), "/data/log"
    log = start(disk, path).get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    plain = make_batch([Rec(b"k", b"v", NOW_MS)])
    for _ in range(3):
        log.append(plain, leader_epoch=0, now_ms=NOW_MS)
    disk.kill()
    # The last one was under way when the process died: that tears nothing.
    half = disk.open(log.active.file.path)
    half.truncate(3 * len(plain) - 5)
    dirs = start(disk, path)
    assert dirs.torn == () and dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).end_offset == 2
    disk.kill()
    disk.rot(log.active.file.path, 20)
    for _ in range(2):
        dirs = start(disk, path)
        assert dirs.torn == dirs.ids
        assert dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).end_offset == 0
        disk.kill()
    start(disk, path).note_admitted()
    disk.kill()
    assert start(disk, path).torn == ()


@pytest.mark.parametrize("seed", range(20))
def test_what_a_failed_fsync_left_in_memory_is_durable_after_the_next_one(seed: int) -> None:
    """The kernel takes the pages of a failed fsync for clean: a later one succeeds, and writes them as little."""
    disk, path = on_one_boot(), "/data/log"
    log = start(disk, path).get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    disk.fail("sync", ".log")
    with pytest.raises(KafkaStorageError):
        log.flush()
    disk.kill()

    dirs = start(disk, path)
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    more = make_batch([Rec(b"k", b"v", NOW_MS)], producer_id=1, epoch=0, sequence=3)
    log.append(more, leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    dirs.checkpoint_work()()
    disk.crash(RealChance(seed))

    log = start(disk, path).get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    assert log.end_offset == 4
    assert log.read(0, 1 << 20, limit_offset=4) is not None


@pytest.mark.parametrize("seed", range(20))
def test_an_aborted_index_whose_fsync_failed_is_durable_after_the_next_one(seed: int) -> None:
    """The scan finds it right, and keeps it."""
    disk, path = on_one_boot(), "/data/log"
    log = start(disk, path).get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    sent = make_batch([Rec(b"k", b"v", NOW_MS)], producer_id=1, epoch=0, sequence=0, transactional=True)
    marker = make_marker(commit=False, producer_id=1)
    log.append(sent, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.TRANSACTION)
    log.append(marker, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    aborted, plain = log.aborted(0, 2), make_batch([Rec(b"k", b"v", NOW_MS)])
    assert aborted
    disk.fail("sync", ".txnindex")
    with pytest.raises(KafkaStorageError):
        log.flush()
    disk.kill()

    dirs = start(disk, path)
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.roll(NOW_MS)
    log.append(plain, leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    dirs.checkpoint_work()()
    disk.crash(RealChance(seed))

    log = start(disk, path).get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    assert (log.end_offset, log.aborted(0, 2)) == (3, aborted)


def test_a_crash_while_files_are_rewritten_costs_nothing() -> None:
    path = "/data/log"
    for operations in range(12):
        disk = on_one_boot()
        log = start(disk, path).get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
        log.append(BATCH, leader_epoch=0, now_ms=NOW_MS)
        disk.fail("sync", ".log")
        with pytest.raises(KafkaStorageError):
            log.flush()
        disk.kill()
        disk.stop_after(operations, RealChance(operations))
        with suppress(Stopped):
            start(disk, path)
        disk.kill()
        assert start(disk, path).get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).end_offset == 3


def _four_segments(place: Place) -> str:
    """A killed broker's log with segments at 0, 3, 6 and 9, all synced and checkpointed; returns its folder."""
    path = f"{place.path}/a"
    dirs = start(place.disk, path)
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    for number in range(4):
        batch = make_batch([Rec(b"k", b"v", NOW_MS)] * 3, producer_id=1, epoch=0, sequence=3 * number)
        log.append(batch, leader_epoch=4, now_ms=NOW_MS)
        if number < 3:
            log.roll(NOW_MS)
    log.flush()
    dirs.checkpoint_work({TP: 12})()
    dirs.abandon()
    return f"{path}/{TP}"


def _segment_file(base_offset: int) -> str:
    return f"{base_offset:020}.log"


def _deleted(base_offset: int) -> Callable[[Disk, str], None]:
    return lambda disk, folder: disk.remove(f"{folder}/{_segment_file(base_offset)}")


def _cut_on_a_batch_boundary(disk: Disk, folder: str) -> None:
    disk.write_file(f"{folder}/{_segment_file(9)}", b"")


@pytest.mark.parametrize(
    ("damage", "left"),
    [(_deleted(3), 3), (_deleted(6), 6), (_deleted(9), 9), (_cut_on_a_batch_boundary, 9)],
    ids=["second", "third", "last", "end of the last"],
)
def test_segments_that_vanish_while_the_broker_is_stopped_are_noticed(
    place: Place, damage: Callable[[Disk, str], None], left: int
) -> None:
    folder = _four_segments(place)
    path = f"{place.path}/a"
    dirs = start(place.disk, path)
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    dirs.note_admitted()
    dirs.close()
    damage(place.disk, folder)
    probe = LogProbe()
    again = LogDirs(place.disk, [path], broker_id=1, chance=RealChance(8), probe=probe)
    again.open(now_ms=NOW_MS)
    assert again.torn == again.ids  # Known before the broker registers.
    log = again.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    assert log.end_offset == left
    assert (probe.recovery_cut_bytes > 0) == (left < 9)  # What lay behind the hole.
    assert probe.recovered_bytes > 0


@pytest.mark.parametrize("base_offset", [3, 6])
def test_a_synced_segment_that_vanishes_after_a_kill_is_noticed(place: Place, base_offset: int) -> None:
    folder = _four_segments(place)
    place.disk.remove(f"{folder}/{_segment_file(base_offset)}")
    probe = LogProbe()
    again = LogDirs(place.disk, [f"{place.path}/a"], broker_id=1, chance=RealChance(8), probe=probe)
    again.open(now_ms=NOW_MS)
    assert again.torn == again.ids
    assert again.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).end_offset == base_offset
    assert probe.recovery_cut_bytes > 0


def test_an_unchanged_log_is_not_read_at_the_next_start(place: Place) -> None:
    _four_segments(place)
    path = f"{place.path}/a"
    start(place.disk, path).close()
    probe = LogProbe()
    again = LogDirs(place.disk, [path], broker_id=1, chance=RealChance(8), probe=probe)
    again.open(now_ms=NOW_MS)
    assert again.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).end_offset == 12
    assert (again.torn, probe.recovered_bytes) == ((), 0)


def test_a_partition_that_comes_back_does_not_inherit_the_marks_of_its_former_log(place: Place) -> None:
    """Its topic id is the same, and the broker dies before the next checkpoint."""
    path = f"{place.path}/a"
    dirs = start(place.disk, path)
    log = dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    log.append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    dirs.checkpoint_work({TP: 3})()
    dirs.remove(TP, TOPIC, now_ms=NOW_MS)
    dirs.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS)
    dirs.abandon()
    again = start(place.disk, path)
    assert again.high_watermark(TP) is None
    assert again.get_or_create(TP, TOPIC, CONFIG, now_ms=NOW_MS).recovery_point == 0


def test_logs_closed_in_shares_are_remembered_alike(place: Place) -> None:
    path = f"{place.path}/a"
    dirs = start(place.disk, path)
    logs = [TopicPartition("orders", number) for number in range(5)]
    for tp in logs:
        dirs.get_or_create(tp, TOPIC, CONFIG, now_ms=NOW_MS).append(BATCH, leader_epoch=0, now_ms=NOW_MS)
    shares = dirs.closing(3)
    assert len(shares) == 3
    for work in reversed(shares):
        work()
    dirs.close(dict.fromkeys(logs, 3))
    probe = LogProbe()
    again = LogDirs(place.disk, [path], broker_id=1, chance=RealChance(8), probe=probe)
    again.open(now_ms=NOW_MS)
    assert not again.torn
    assert {again.get_or_create(tp, TOPIC, CONFIG, now_ms=NOW_MS).end_offset for tp in logs} == {3}
