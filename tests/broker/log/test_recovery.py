"""Dying at every single operation, by kill and by power loss, and what must be there afterwards."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from budget import some
from ottla_broker.log.aborted import AbortedTransaction
from ottla_broker.log.log import Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.replacing import complete
from ottla_broker.log.segment import Mark
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import CorruptMessage
from ottla_core.real.chance import RealChance
from ottla_core.records.batch import header_at
from sim.batches import Rec, make_batch, make_marker
from sim.disk import SimDisk, Stopped
from sim.places import Place, purge

NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=450, index_interval_bytes=100, file_delete_delay_ms=0)
PATH = "/d/t-0"


def batch(number: int) -> bytes:
    return make_batch(
        [Rec(b"k", b"%d" % number * 40, NOW_MS + number)], producer_id=3, epoch=0, sequence=number
    )


@dataclass
class Life:
    """A log and what its owner was promised."""

    disk: SimDisk
    log: Log = field(init=False)
    #: Offset -> number of the batch, for everything that was acknowledged.
    written: dict[int, int] = field(default_factory=dict)
    flushed: int = 0
    removed: set[int] = field(default_factory=set)
    #: What the checkpoint says of recovery point and start.
    checkpoint: int = 0
    start: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.log = Log.open(self.disk, PATH, CONFIG, clean=True, now_ms=NOW_MS)

    def append(self, count: int) -> None:
        for _ in range(count):
            number = len(self.written)
            info = self.log.append(batch(number), leader_epoch=self.epoch, now_ms=NOW_MS)
            self.written[info.base_offset] = number

    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.checkpoint = self.log.recovery_point
        self.log.mark_checkpointed(self.checkpoint)

    def truncate(self, offset: int) -> None:
        for gone in [o for o in self.written if o >= offset]:
            del self.written[gone]
        self.flushed = min(self.flushed, offset)
        self.epoch += 1
        self.log.truncate_to(offset)

    def compact(self, keep: Callable[[int], bool]) -> None:
        old = self.log.segments[:-1]
        new = self.log.new_segment(old[0].base_offset, now_ms=NOW_MS)
        going = set()
        for segment in old:
            for offset in range(segment.base_offset, self.log.end_offset):
                found = segment.locate(offset)
                if found is None or found[1].base_offset != offset:
                    continue
                # Like the cleaner, keep the last batch: segments end where the next one begins.
                if keep(offset) or found[1].next_offset == self.log.active.base_offset:
                    data = segment.file.read(found[0], found[1].size)
                    made = header_at(data)
                    new.append([data], [Mark(made.last_offset, made.max_timestamp, made.size)])
                else:
                    going.add(offset)
        self.removed |= going
        complete(new)
        for work in self.log.replace_segments(old, new, now_ms=NOW_MS):
            work()

    def drop_before(self, offset: int) -> None:
        self.start = offset
        self.log.advance_start(offset)
        self.log.housekeeping(NOW_MS, self.log.end_offset)
        purge(self.log, NOW_MS)

    # ------------------------------------------------------------------ afterwards

    def reborn(self, disk: SimDisk, *, power_lost: bool) -> None:
        """Open what the disk has, and compare it with what was promised."""
        log = Log.open(
            disk,
            PATH,
            CONFIG,
            clean=False,
            recovery_point=self.checkpoint,
            log_start=self.start,
            now_ms=NOW_MS,
        )
        promised = self.flushed if power_lost else (max(self.written, default=-1) + 1)
        assert log.end_offset >= promised, "an acknowledged record is gone"
        headers = list(log.verify())
        offsets = [h.base_offset for h in headers]
        assert offsets == sorted(set(offsets))
        must = {o for o in self.written if self.start <= o < promised} - self.removed
        assert must <= set(offsets)
        for header in headers:
            if header.base_offset in self.written:
                extent = log.read(max(header.base_offset, log.start_offset), 1, limit_offset=log.end_offset)
                assert extent is not None
                if header.base_offset >= log.start_offset:
                    data = extent.file.read(extent.position, extent.size)
                    assert data[61:] == batch(self.written[header.base_offset])[61:]
        assert not [n for n in disk.list(PATH) if n.endswith((".swap", ".cleaned", ".deleted", ".tmp"))]
        epochs = [h.leader_epoch for h in headers]
        assert epochs == sorted(epochs), "an old leader's batches came back behind a newer one's"
        visible = [h for h in headers if h.base_offset >= log.start_offset]
        assert all(log.epochs.epoch_at(h.base_offset) == h.leader_epoch for h in visible)
        if headers and headers[-1].base_offset in self.written:
            again = log.append(batch(self.written[headers[-1].base_offset]), leader_epoch=99, now_ms=NOW_MS)
            assert again.duplicate, "the producer state does not know the last batch"
        end = log.end_offset
        assert (
            log.append(make_batch([Rec(b"k", b"", NOW_MS)]), leader_epoch=99, now_ms=NOW_MS).base_offset
            == end
        )
        log.close()
        twice = Log.open(disk, PATH, CONFIG, clean=True, log_start=self.start, now_ms=NOW_MS)
        assert twice.end_offset == end + 1
        assert [h.base_offset for h in twice.verify()] == [*offsets, end]


def writing(life: Life) -> None:
    life.append(7)
    life.flush()
    life.append(4)


def cutting(life: Life) -> None:
    life.append(9)
    life.flush()
    life.truncate(4)
    life.append(6)
    life.flush()
    life.append(2)
    life.truncate(1)
    life.append(1)


def compacting(life: Life) -> None:
    life.append(10)
    life.flush()
    life.compact(lambda offset: offset % 3 == 1)
    life.append(3)
    life.flush()
    life.compact(lambda offset: offset % 2 == 1)


def dropping(life: Life) -> None:
    life.append(10)
    life.flush()
    life.drop_before(5)
    life.append(3)
    life.drop_before(9)


def stopping(life: Life) -> None:
    life.append(5)
    life.log.close()
    life.flushed = life.log.end_offset
    life.log = Log.open(life.disk, PATH, CONFIG, clean=True, now_ms=NOW_MS)
    life.epoch += 1
    life.append(3)


SCENARIOS = [writing, cutting, compacting, dropping, stopping]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_a_death_at_every_operation(scenario: Callable[[Life], None]) -> None:
    deaths = 0
    for fuse in range(100_000):
        disk = SimDisk()
        disk.make_dirs("/d")
        disk.sync_dir("/")
        life = Life(disk)
        disk.stop_after(fuse, RealChance(fuse))
        try:
            scenario(life)
        except Stopped:
            deaths += 1
        else:
            break
        killed = copy.deepcopy(disk)
        killed.kill()
        life.reborn(killed, power_lost=False)
        for seed in some(range(4)):
            crashed = copy.deepcopy(disk)
            crashed.crash(RealChance(1000 * fuse + seed))
            life.reborn(crashed, power_lost=True)
    assert deaths > 20


def test_a_death_during_recovery_is_recovered_from() -> None:
    """Recovery itself writes, cuts and renames; dying in it must not make things worse."""
    disk = SimDisk()
    life = Life(disk)
    compacting(life)
    life.append(4)
    disk.crash(RealChance(5))
    for fuse in range(10_000):
        again = copy.deepcopy(disk)
        again.stop_after(fuse, RealChance(fuse))
        try:
            Log.open(again, PATH, CONFIG, clean=False, recovery_point=life.checkpoint, now_ms=NOW_MS)
        except Stopped:
            again.crash(RealChance(fuse))
            life.reborn(again, power_lost=True)
        else:
            break
    else:
        pytest.fail("recovery never ended")


# ---------------------------------------------------------------------- single damages


def fill(place: Place, count: int) -> Log:
    log = Log.open(place.disk, f"{place.path}/t-0", CONFIG, clean=True, now_ms=NOW_MS)
    for number in range(count):
        log.append(batch(number), leader_epoch=0, now_ms=NOW_MS)
    return log


def dirty(place: Place, recovery_point: int = 0) -> Log:
    return Log.open(
        place.disk, f"{place.path}/t-0", CONFIG, clean=False, recovery_point=recovery_point, now_ms=NOW_MS
    )


@pytest.mark.parametrize(
    "tail", [b"", b"\0", b"\0" * 61, b"\0" * 4096, b"\xff" * 300, batch(4)[:-1], batch(4)[:61]]
)
def test_a_torn_tail_is_cut_off(place: Place, tail: bytes) -> None:
    log = fill(place, 4)
    active = log.active
    end = active.size
    active.file.append([tail])
    log.close(clean=False)
    again = dirty(place)
    assert (again.end_offset, again.active.size) == (4, end)
    assert again.append(batch(4), leader_epoch=1, now_ms=NOW_MS).base_offset == 4


def test_a_batch_that_repeats_offsets_is_cut_off(place: Place) -> None:
    log = fill(place, 4)
    log.active.file.append([log.active.file.read(0, 100_000)])
    log.close(clean=False)
    assert dirty(place).end_offset == 4


def test_an_older_leaders_batch_behind_a_newer_ones_is_cut_off(place: Place) -> None:
    log = fill(place, 2)
    log.append(batch(2), leader_epoch=5, now_ms=NOW_MS)
    log.active.file.append([make_batch([Rec(b"k", b"old", NOW_MS)], base_offset=3, leader_epoch=4)])
    log.close(clean=False)
    again = dirty(place)
    assert (again.end_offset, again.epochs.latest_epoch) == (3, 5)


def test_segments_behind_a_bad_batch_go(place: Place) -> None:
    log = fill(place, 12)
    bases = [s.base_offset for s in log.segments]
    assert len(bases) > 3
    damaged = log.segments[1]
    size = damaged.size
    damaged.file.truncate(size - 1)
    log.close(clean=False)
    again = dirty(place)
    assert again.end_offset == bases[2] - 1
    assert [s.base_offset for s in again.segments] == bases[:2]
    assert not [n for n in place.disk.list(again.path) if n.startswith(f"{bases[2]:020d}")]


def test_only_what_was_not_flushed_is_read_again() -> None:
    disk = SimDisk()
    log = fill(Place(disk, "/d"), 12)
    log.close(clean=False)
    damaged = log.segments[0].path(".log")
    disk.rot(damaged, 70)
    again = dirty(Place(disk, "/d"), recovery_point=12)
    assert again.end_offset == 12, "below the recovery point nothing is scanned, and nothing cut"
    with pytest.raises(CorruptMessage):
        list(again.verify())
    again.close(clean=False)
    assert dirty(Place(disk, "/d"), recovery_point=0).end_offset == 0


def test_a_scan_that_cut_nothing_flushes_nothing(place: Place) -> None:
    """Ten thousand partitions must not cost ten thousand fsyncs after a kill."""
    log = fill(place, 12)
    log.close(clean=False)
    again = dirty(place)
    assert (again.recovery_point, again.end_offset) == (0, 12)


def test_a_scan_that_cut_something_is_flushed(place: Place) -> None:
    """Else the cut could come undone by a power loss, behind what is written after it."""
    log = fill(place, 12)
    log.close(clean=False)
    last = place.disk.open(log.active.file.path)
    last.truncate(last.size() - 1)
    last.close()
    again = dirty(place)
    assert again.recovery_point == again.end_offset < 12


def test_records_whose_deletion_was_not_checkpointed_have_their_epochs_again(place: Place) -> None:
    """Else a follower that has others there, of an earlier epoch, would be taken for equal."""
    log = Log.open(place.disk, f"{place.path}/t-0", CONFIG, clean=True, now_ms=NOW_MS)
    for number, epoch in enumerate((0, 0, 2, 2)):
        log.append(batch(number), leader_epoch=epoch, now_ms=NOW_MS)
    everything, end = list(log.epochs.entries), log.end_offset
    log.advance_start(end - 1)
    assert log.epochs.entries == [(2, end - 1)]
    log.close(clean=False)
    again = dirty(place, recovery_point=end)
    assert (again.start_offset, again.epochs.entries) == (0, everything)
    assert again.epochs.end_for(1, end) == (0, everything[1].start_offset)


def test_a_log_that_lost_more_than_was_deleted_begins_at_its_start(place: Place) -> None:
    log = fill(place, 3)
    log.close(clean=False)
    again = Log.open(place.disk, log.path, CONFIG, clean=False, log_start=10, now_ms=NOW_MS)
    assert (again.start_offset, again.end_offset) == (10, 10)
    assert again.append(batch(0), leader_epoch=0, now_ms=NOW_MS).base_offset == 10


@pytest.mark.parametrize("content", [b"", b"0\n1\n", b"0\n1\n0 5", b"\0" * 20, b"garbage"])
def test_epochs_come_back_from_the_log(place: Place, content: bytes) -> None:
    log = Log.open(place.disk, f"{place.path}/t-0", CONFIG, clean=True, now_ms=NOW_MS)
    for number in range(9):
        log.append(batch(number), leader_epoch=number // 3, now_ms=NOW_MS)
    expected = list(log.epochs.entries)
    log.close(clean=False)
    place.disk.write_file(f"{log.path}/leader-epoch-checkpoint", content)
    assert dirty(place, recovery_point=9).epochs.entries == expected
    place.disk.write_file(f"{log.path}/leader-epoch-checkpoint", content)
    clean = Log.open(place.disk, log.path, CONFIG, clean=True, now_ms=NOW_MS)
    assert clean.epochs.entries == expected
    facts = clean.clean_stop()
    clean.close()
    place.disk.write_file(f"{log.path}/leader-epoch-checkpoint", content)
    believed = Log.open(place.disk, log.path, CONFIG, clean=True, facts=facts, now_ms=NOW_MS)
    assert believed.epochs.entries == expected


def test_rebuilt_epochs_are_in_the_file_after_a_clean_stop(place: Place) -> None:
    """Power is lost before the file was written back; the next life reads no batch and writes none."""
    path = f"{place.path}/t-0"
    Log.open(place.disk, path, CONFIG, clean=True, now_ms=NOW_MS).close(clean=False)
    place.disk.write_file(f"{path}/leader-epoch-checkpoint", b"0\n1\n")
    dirty(place).close()
    assert place.disk.read_file(f"{path}/leader-epoch-checkpoint") == b"0\n0\n"


@pytest.mark.parametrize("seed", range(8))
def test_a_clean_stop_leaves_nothing_of_the_epochs_to_a_power_loss(seed: int) -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    disk.sync_dir("/")
    log = Log.open(disk, PATH, CONFIG, clean=True, now_ms=NOW_MS)
    for number in range(9):
        plain = make_batch(
            [Rec(b"k", b"v", NOW_MS)]
        )  # No producer: a snapshot of those would be synced anyway.
        log.append(plain, leader_epoch=number // 3, now_ms=NOW_MS)
    log.flush()
    log.advance_start(7)
    log.close()
    disk.crash(RealChance(seed))
    again = Log.open(disk, PATH, CONFIG, clean=True, log_start=7, now_ms=NOW_MS)
    assert again.epochs.entries == [(2, 7)]


@pytest.mark.parametrize("harm", ["missing", "garbage"])
def test_producers_come_back_without_snapshots(place: Place, harm: str) -> None:
    log = fill(place, 12)
    expected = log.producers.encode(12)
    log.close(clean=False)
    for name in place.disk.list(log.path):
        if name.endswith(".snapshot"):
            if harm == "missing":
                place.disk.remove(f"{log.path}/{name}")
            else:
                place.disk.write_file(f"{log.path}/{name}", random.Random(1).randbytes(60))
    again = dirty(place, recovery_point=12)
    assert again.producers.encode(12)[-50:] == expected[-50:]
    assert again.append(batch(11), leader_epoch=1, now_ms=NOW_MS).duplicate


# ---------------------------------------------------------------------- aborted transactions


PLAIN = make_batch([Rec(b"k", b"v", NOW_MS)])
ABORTED = [AbortedTransaction(7, 0, 1, 2)]


def abort_durably(disk: SimDisk) -> Log:
    """An aborted transaction at 0, its marker at 1, all flushed."""
    disk.make_dirs("/d")
    disk.sync_dir("/")
    log = Log.open(disk, PATH, CONFIG, clean=True, now_ms=NOW_MS)
    sent = make_batch([Rec(b"k", b"v", NOW_MS)], producer_id=7, epoch=0, sequence=0, transactional=True)
    marker = make_marker(commit=False, producer_id=7)
    log.append(sent, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.TRANSACTION)
    log.append(marker, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.flush()
    assert (log.recovery_point, log.aborted(0, 2)) == (2, ABORTED)
    return log


def begin_another_segment(log: Log) -> None:
    log.roll(NOW_MS)
    log.append(PLAIN, leader_epoch=0, now_ms=NOW_MS)
    log.flush()


@pytest.mark.parametrize("seed", range(24))
def test_a_kill_and_a_power_loss_do_not_show_what_was_aborted(seed: int) -> None:
    """The scan after the kill ends at the recovery point, and so does the segment: no flush looks at it again."""
    disk = SimDisk()
    abort_durably(disk)
    disk.kill()
    log = dirty(Place(disk, "/d"), recovery_point=2)
    begin_another_segment(log)
    disk.crash(RealChance(seed))
    again = dirty(Place(disk, "/d"), recovery_point=log.recovery_point)
    assert (again.end_offset, again.aborted(0, 3)) == (3, ABORTED)


@pytest.mark.parametrize("seed", range(24))
def test_a_kill_a_clean_stop_and_a_power_loss_do_not_show_what_was_aborted(seed: int) -> None:
    """The snapshot of producers is there from an earlier stop, so the later one has nothing to flush."""
    disk = SimDisk()
    abort_durably(disk).close()
    Log.open(disk, PATH, CONFIG, clean=True, now_ms=NOW_MS)
    disk.kill()
    dirty(Place(disk, "/d"), recovery_point=2).close()
    disk.crash(RealChance(seed))
    again = Log.open(disk, PATH, CONFIG, clean=True, now_ms=NOW_MS)
    assert (again.end_offset, again.aborted(0, 2)) == (2, ABORTED)


@pytest.mark.parametrize("damage", [b"", b"\0" * 33, b"\xff" * 34], ids=["empty", "torn", "garbage"])
def test_a_power_loss_while_an_aborted_index_is_rebuilt(damage: bytes) -> None:
    """The segment is below the recovery point, so only the damage itself says that it has to be read."""
    disk = SimDisk()
    log = abort_durably(disk)
    if damage:
        begin_another_segment(log)
    disk.write_file(log.segments[0].path(".txnindex"), damage)
    point = log.recovery_point
    disk.kill()
    for fuse in range(100):
        for seed in range(4):
            dying = copy.deepcopy(disk)
            dying.stop_after(fuse, RealChance(seed))
            try:
                dirty(Place(dying, "/d"), recovery_point=point)
            except Stopped:
                is_done = False
            else:
                is_done = True
            dying.crash(RealChance(seed))
            assert dirty(Place(dying, "/d"), recovery_point=point).aborted(0, 2) == ABORTED
        if is_done:
            return
    pytest.fail("recovery never ended")


# ---------------------------------------------------------------------- clean stops


def test_facts_spare_all_reading() -> None:
    disk = SimDisk()
    log = fill(Place(disk, "/d"), 12)
    facts = log.clean_stop()
    log.close()
    reads = disk.counts["read"]
    again = Log.open(disk, PATH, CONFIG, clean=True, now_ms=NOW_MS, facts=facts)
    assert (again.end_offset, again.recovery_point) == (12, 12)
    assert disk.counts["read"] - reads == 1, "the producer snapshot, and nothing else"
    assert again.append(batch(11), leader_epoch=1, now_ms=NOW_MS).duplicate
    assert again.append(batch(12), leader_epoch=1, now_ms=NOW_MS).base_offset == 12
    assert [h.base_offset for h in again.verify()] == list(range(13))


def test_facts_that_do_not_fit_are_not_believed(place: Place) -> None:
    log = fill(place, 5)
    facts = log.clean_stop()
    log.append(batch(5), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    again = Log.open(place.disk, log.path, CONFIG, clean=True, now_ms=NOW_MS, facts=facts)
    assert again.end_offset == 6


@pytest.mark.parametrize("with_facts", [False, True])
def test_clean_stops_do_not_leave_ever_more_snapshots(place: Place, with_facts: bool) -> None:
    path, facts = f"{place.path}/t-0", None
    for number in range(6):
        log = Log.open(place.disk, path, CONFIG, clean=True, now_ms=NOW_MS, facts=facts)
        assert log.end_offset == number
        made = make_batch([Rec(b"k", b"v", NOW_MS)], producer_id=1, epoch=0, sequence=number)
        log.append(made, leader_epoch=0, now_ms=NOW_MS)
        facts = log.clean_stop() if with_facts else None
        log.close()
    again = Log.open(place.disk, path, CONFIG, clean=True, now_ms=NOW_MS, facts=facts)
    bases = {f"{segment.base_offset:020d}.snapshot" for segment in again.segments}
    strays = {n for n in place.disk.list(path) if n.endswith(".snapshot")} - bases
    assert len(strays) <= 1
    assert again.append(made, leader_epoch=0, now_ms=NOW_MS).duplicate


def test_a_stop_that_only_said_it_was_clean_is_scanned(place: Place) -> None:
    log = fill(place, 5)
    active, end = log.active, log.active.size
    log.close()
    file = place.disk.open(active.path(".log"))
    file.append([b"\0" * 100])
    file.close()
    again = Log.open(place.disk, log.path, CONFIG, clean=True, now_ms=NOW_MS)
    assert (again.end_offset, again.active.size) == (5, end)
