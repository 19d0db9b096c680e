"""A log that is cut, emptied or closed while compacted segments take their places: nothing that went comes back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pytest

from broker.log.test_compaction import CONFIG, NOW, PATH, batches, contents, new_log, put, reopen
from budget import some
from ottla_broker.log.cleaner import Cleaning
from ottla_broker.log.log import Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.replacing import Replacing
from ottla_core.errors import KafkaStorageError
from ottla_core.real.chance import RealChance
from sim.batches import Rec, make_batch, make_marker
from sim.disk import SimDisk, Stopped

SMALL = replace(CONFIG, segment_bytes=400)
END = 28


@dataclass
class Scene:
    disk: SimDisk
    log: Log
    rest: Iterator[Callable[[], None]]
    #: Set when a cut is done: what lay behind it must not come back.
    cut_at: int | None = None

    def go_on(self) -> None:
        for work in self.rest:
            work()


def scene(pauses: int, *, synced: bool) -> Scene:
    """A cleaning that waits for the disk for the `pauses`-th time, `synced`: the disk is done already."""
    disk, log = new_log(config=SMALL)
    for n in range(14):
        put(log, (f"k{n % 4}", str(n) * 20), (f"k{n % 3}", str(n)))
    log.roll(NOW)
    log.flush()
    log.mark_checkpointed(log.recovery_point)
    cleaning = Cleaning.begin(log, now_ms=NOW, first_dirty_offset=0, stable_offset=END)
    assert cleaning is not None
    while cleaning.step():
        pass
    swaps = cleaning.finish(log, NOW)
    for _ in range(pauses):
        next(swaps)()
    work = next(swaps)
    if synced:
        work()
    return Scene(disk, log, swaps if synced else chain([work], swaps))


def _within(scene: Scene) -> int:
    """An offset in the midst of what is being replaced."""
    (name,) = [n for n in scene.disk.list(PATH) if n.endswith(".log.swap")]
    return int(name.split(".")[0]) + 3


def cut(scene: Scene) -> None:
    scene.log.truncate_to(_within(scene), now_ms=NOW)
    scene.cut_at = scene.log.end_offset


def restart(scene: Scene) -> None:
    scene.log.restart_at(_within(scene), now_ms=NOW)
    scene.cut_at = 0


def write_on(log: Log) -> None:
    for n in range(5):
        records = [Rec(b"k%d" % n, b"new" * 20, NOW)]
        log.append(make_batch(records), leader_epoch=1, now_ms=NOW)


def play(scene: Scene, move: Callable[[Scene], None]) -> None:
    move(scene)
    write_on(scene.log)
    scene.go_on()
    write_on(scene.log)


def check(scene: Scene, disk: SimDisk, must: set[tuple[int, bytes | None, bytes | None]]) -> None:
    again = Log.open(disk, PATH, SMALL, clean=False, recovery_point=END, now_ms=NOW)
    found = batches(again)
    old = [h for h, _ in found if h.leader_epoch == 0]
    offsets = [h.base_offset for h, _ in found]
    assert offsets == sorted(set(offsets))
    assert [h.leader_epoch for h, _ in found] == sorted(h.leader_epoch for h, _ in found)
    if scene.cut_at is not None:
        assert all(h.last_offset < scene.cut_at for h in old), "what was cut is back"
        must = {record for record in must if record[0] < scene.cut_at}
    elif again.end_offset < END:
        must = {record for record in must if record[0] < again.end_offset}
    assert must <= set(contents(again)), "something is gone that nobody has cut"
    assert not [n for n in disk.list(PATH) if n.endswith((".swap", ".cleaned", ".deleted"))]


MOMENTS = [(pauses, synced) for pauses in range(2) for synced in (False, True)]


@pytest.mark.parametrize("move", [cut, restart])
@pytest.mark.parametrize(("pauses", "synced"), MOMENTS)
@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power loss"])
def test_a_cut_while_the_disk_is_waited_for(
    move: Callable[[Scene], None], pauses: int, synced: bool, power_loss: bool
) -> None:
    whole = scene(pauses, synced=synced)
    must, counted = set(_newest(contents(whole.log))), whole.disk.counts.total()
    play(whole, move)
    operations = whole.disk.counts.total() - counted
    for fuse in some(range(pauses % 2, operations, 2)):
        at = scene(pauses, synced=synced)
        at.disk.stop_after(fuse, RealChance(fuse))
        try:
            play(at, move)
        except Stopped:
            pass
        if not power_loss:
            at.disk.kill()
            check(at, at.disk, must)
            continue
        for seed in range(2):
            disk = copy.deepcopy(at.disk)
            disk.crash(RealChance(fuse * 2 + seed))
            check(at, disk, must)


def _newest(
    found: list[tuple[int, bytes | None, bytes | None]],
) -> list[tuple[int, bytes | None, bytes | None]]:
    return list({key: (offset, key, value) for offset, key, value in found}.values())


@pytest.mark.parametrize("pauses", [0, 1])
def test_without_ending_what_is_under_way_it_comes_back(pauses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above has teeth."""
    monkeypatch.setattr(Replacing, "end", lambda *_: None)
    with pytest.raises(AssertionError):
        for fuse in range(40):
            at = scene(pauses, synced=True)
            must = set(_newest(contents(at.log)))
            at.disk.stop_after(fuse, RealChance(fuse))
            try:
                play(at, cut)
            except Stopped:
                pass
            at.disk.kill()
            check(at, at.disk, must)


def test_a_tail_rewritten_to_the_same_size_stays() -> None:
    at = scene(0, synced=True)
    at.go_on()
    put(at.log, ("a", "1" * 40), ("b", "1"))
    put(at.log, ("a", "2" * 40), ("b", "2"))
    at.log.roll(NOW)
    cleaning = Cleaning.begin(at.log, now_ms=NOW, first_dirty_offset=END, stable_offset=END + 4)
    assert cleaning is not None
    while cleaning.step():
        pass
    at.log.truncate_to(END + 2, now_ms=NOW)
    put(at.log, ("c", "3" * 40), ("d", "3"))
    at.log.roll(NOW)
    expected = contents(at.log)
    for work in cleaning.finish(at.log, NOW):
        work()
    assert contents(at.log) == expected
    assert cleaning.end_offset <= END


def test_aborted_transactions_are_known_after_a_death_at_any_point() -> None:
    """Missing indexes are rebuilt from the log; the index of aborted transactions is not."""

    def begin() -> tuple[SimDisk, Log, Cleaning]:
        disk, log = new_log()
        put(log, ("a", "1"))
        put(log, ("b", "1"), transactional=True, producer_id=7, epoch=0, sequence=0)
        marker = make_marker(commit=False, producer_id=7, timestamp=NOW)
        log.append(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
        log.roll(NOW)
        log.flush()
        # The map is full with the first key: what is aborted stays, for the next round.
        cleaning = Cleaning.begin(log, now_ms=NOW, first_dirty_offset=0, stable_offset=3, key_map_bytes=1)
        assert cleaning is not None
        while cleaning.step():
            pass
        return disk, log, cleaning

    disk, log, cleaning = begin()
    counted = disk.counts.total()
    for work in cleaning.finish(log, NOW):
        work()
    expected = log.aborted(0, 3)
    assert [entry.first_offset for entry in expected] == [1]
    for fuse in range(disk.counts.total() - counted):
        disk, log, cleaning = begin()
        disk.stop_after(fuse, RealChance(fuse))
        with pytest.raises(Stopped):
            for work in cleaning.finish(log, NOW):
                work()
            log.flush()
            disk.sync_dir(PATH)
        disk.kill()
        for again_fuse in range(12):
            # Putting the folder in order may be interrupted as well.
            copied = copy.deepcopy(disk)
            copied.stop_after(again_fuse, RealChance(0))
            try:
                reopen(copied, recovery_point=3)
            except Stopped:
                pass
            copied.kill()
            assert reopen(copied, recovery_point=3).aborted(0, 3) == expected, (fuse, again_fuse)


def test_a_failed_sync_takes_the_log_offline() -> None:
    at = scene(0, synced=False)
    at.disk.fail("sync_dir")
    with pytest.raises(OSError):
        at.go_on()
    at.log.mark_broken(OSError("as told"))
    at.log.end_replacement(NOW)
    with pytest.raises(KafkaStorageError):
        at.go_on()


@pytest.mark.parametrize(("pauses", "synced"), MOMENTS)
def test_a_log_that_is_closed_meanwhile_is_completed_at_the_next_start(pauses: int, synced: bool) -> None:
    at = scene(pauses, synced=synced)
    before = contents(at.log)
    at.log.close()
    with pytest.raises(KafkaStorageError):
        at.go_on()
    at.log.end_replacement(NOW)
    again = Log.open(at.disk, PATH, SMALL, clean=True, now_ms=NOW)
    assert set(_newest(before)) <= set(contents(again)) <= set(before)
    assert again.end_offset == END


@pytest.mark.parametrize(("pauses", "synced"), MOMENTS)
def test_an_aborted_replacement_leaves_nothing_half_done(pauses: int, synced: bool) -> None:
    at = scene(pauses, synced=synced)
    before = contents(at.log)
    at.log.end_replacement(NOW)
    assert not [n for n in at.disk.list(PATH) if n.endswith(".swap")]
    assert set(_newest(before)) <= set(contents(at.log)) <= set(before)
    at.disk.kill()
    assert set(_newest(before)) <= set(contents(reopen(at.disk, SMALL, END))) <= set(before)


@pytest.mark.parametrize(("pauses", "synced"), MOMENTS)
def test_retention_waits_for_what_is_being_replaced(pauses: int, synced: bool) -> None:
    at = scene(pauses, synced=synced)
    at.log.advance_start(20)
    assert at.log.housekeeping(NOW, END) == 0
    at.go_on()
    assert at.log.housekeeping(NOW, END) > 0
    assert at.log.segments[0].base_offset <= 20 < at.log.segments[1].base_offset
