"""The simulated disk keeps its own word: what it may forget, and what it must not."""

from __future__ import annotations

import copy
import errno

import pytest

from ottla_core.real.chance import RealChance
from sim.disk import SimDisk, Stopped


def made(path: str = "/d/log", content: bytes = b"") -> SimDisk:
    """A disk with one file, all of it synced."""
    disk = SimDisk()
    disk.make_dirs("/d")
    disk.sync_dir("/")
    file = disk.open(path, create=True)
    file.append([content])
    file.sync()
    disk.sync_dir("/d")
    return disk


def outcomes(disk: SimDisk, path: str = "/d/log", seeds: int = 200) -> set[bytes | None]:
    seen: set[bytes | None] = set()
    for seed in range(seeds):
        one = copy.deepcopy(disk)
        one.crash(RealChance(seed))
        seen.add(one.read_file(path) if one.exists(path) else None)
    return seen


def test_synced_bytes_always_survive_and_unsynced_ones_vary() -> None:
    disk = made(content=b"synced.")
    disk.open("/d/log").append([b"NEWBYTES"])
    seen = outcomes(disk)
    assert all(one is not None and one.startswith(b"synced.") and len(one) <= 15 for one in seen)
    assert b"synced." in seen
    assert b"synced.NEWBYTES" in seen
    assert b"synced.NEW" in seen
    assert any(one is not None and one.endswith(b"\0") for one in seen)
    assert any(
        one is not None and not (b"synced.NEWBYTES".startswith(one)) and b"\0" not in one for one in seen
    )


def test_kill_keeps_the_page_cache() -> None:
    disk = made(content=b"synced.")
    file = disk.open("/d/log")
    file.append([b"unsynced"])
    disk.open("/d/new", create=True).append([b"x"])
    disk.kill()
    assert disk.read_file("/d/log") == b"synced.unsynced"
    assert disk.read_file("/d/new") == b"x"
    with pytest.raises(Stopped):
        file.read(0, 1)


def test_after_a_kill_power_may_still_go() -> None:
    disk = made(content=b"synced.")
    disk.open("/d/log").append([b"unsynced"])
    disk.kill()
    assert b"synced." in outcomes(disk)


def test_an_unsynced_truncation_may_be_undone_behind_new_bytes() -> None:
    disk = made(content=b"0123456789")
    file = disk.open("/d/log")
    file.truncate(4)
    file.append([b"ab"])
    seen = outcomes(disk)
    assert {b"0123", b"0123456789", b"0123ab", b"0123ab6789"} <= seen
    file.sync()
    assert outcomes(disk) == {b"0123ab"}


def test_names_are_sure_only_after_sync_dir() -> None:
    disk = made()
    file = disk.open("/d/new", create=True)
    file.append([b"content"])
    file.sync()
    assert outcomes(disk, "/d/new") == {None, b"content"}
    disk.sync_dir("/d")
    assert outcomes(disk, "/d/new") == {b"content"}
    disk.remove("/d/new")
    assert outcomes(disk, "/d/new") == {None, b"content"}
    disk.sync_dir("/d")
    assert outcomes(disk, "/d/new") == {None}


def test_a_folder_that_was_not_synced_takes_its_files_with_it() -> None:
    disk = SimDisk()
    disk.make_dirs("/a/b")
    file = disk.open("/a/b/f", create=True)
    file.append([b"x"])
    file.sync()
    disk.sync_dir("/a/b")
    assert outcomes(disk, "/a/b/f") == {None, b"x"}
    disk.sync_dir("/a")
    disk.sync_dir("/")
    assert outcomes(disk, "/a/b/f") == {b"x"}


def test_a_rename_is_all_or_nothing() -> None:
    disk = made(content=b"old")
    file = disk.open("/d/log.tmp", create=True)
    file.append([b"new"])
    file.sync()
    disk.rename("/d/log.tmp", "/d/log")
    for seed in range(100):
        one = copy.deepcopy(disk)
        one.crash(RealChance(seed))
        assert (one.read_file("/d/log"), one.exists("/d/log.tmp")) in [
            (b"old", False),
            (b"old", True),
            (b"new", False),
        ]
    disk.sync_dir("/d")
    assert outcomes(disk) == {b"new"}


def test_a_moved_folder_keeps_its_files() -> None:
    disk = made(content=b"x")
    disk.rename("/d", "/e")
    disk.sync_dir("/")
    assert outcomes(disk, "/d/log") == {None}
    assert outcomes(disk, "/e/log") == {b"x"}


def test_write_file_is_old_or_new_and_without_sync_anything() -> None:
    disk = made(content=b"old")
    disk.write_file("/d/log", b"new")
    assert outcomes(disk) == {b"new"}
    disk.write_file("/d/log", b"newer", sync=False)
    assert {b"new", b"newer", b""} <= outcomes(disk)


@pytest.mark.parametrize("stop", range(6))
def test_write_file_dies_at_every_step(stop: int) -> None:
    disk = made(content=b"old")
    disk.stop_after(stop, RealChance(stop))
    try:
        disk.write_file("/d/log", b"new")
        finished = True
    except Stopped:
        finished = False
        with pytest.raises(Stopped):
            disk.read_file("/d/log")
    assert finished == (stop == 5)
    assert outcomes(disk) <= ({b"new"} if finished else {b"old", b"new"})
    disk.kill()
    assert disk.read_file("/d/log") in (b"old", b"new")


def test_an_append_may_stop_half_way() -> None:
    seen = set()
    for seed in range(50):
        disk = made()
        disk.stop_after(0, RealChance(seed))
        with pytest.raises(Stopped):
            disk.open("/d/log").append([b"ab", b"cd"])
        disk.kill()
        seen.add(disk.read_file("/d/log"))
    assert seen == {b"", b"a", b"ab", b"abc", b"abcd"}


def test_a_failed_sync_is_final() -> None:
    disk = made(content=b"1")
    file = disk.open("/d/log")
    file.append([b"2"])
    disk.fail("sync", "/log")
    with pytest.raises(OSError) as failed:
        file.sync()
    assert failed.value.errno == errno.EIO
    with pytest.raises(OSError, match="earlier sync"):
        file.sync()
    disk.open("/d/log").sync()
    assert file.read(0, 9) == b"12"
    assert b"1" in outcomes(disk)


def test_injected_faults_hit_what_they_name_and_change_nothing() -> None:
    disk = made(content=b"1")
    file = disk.open("/d/log")
    disk.fail("append", ".log", times=1)
    disk.fail("append", "/log", errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(OSError) as failed:
            file.append([b"2"])
        assert failed.value.errno == errno.ENOSPC
    assert file.append([b"3"]) == 1
    disk.fail("read", "log")
    with pytest.raises(OSError):
        file.read(0, 9)
    assert file.read(0, 9) == b"13"
    assert disk.counts["append"] == 4


def test_room_comes_back_with_removed_bytes() -> None:
    disk = made(content=b"12345")
    disk.capacity_bytes = 10
    assert disk.free_bytes("/d") == 5
    file = disk.open("/d/log")
    with pytest.raises(OSError) as full:
        file.append([b"123456"])
    assert full.value.errno == errno.ENOSPC
    file.truncate(1)
    assert disk.free_bytes("/d") == 9
    disk.remove("/d/log")
    assert disk.free_bytes("/d") == 10


def test_rot_is_silent_and_survives() -> None:
    disk = made(content=b"abc")
    disk.rot("/d/log", 1, 0x80)
    assert disk.read_file("/d/log") == b"a\xe2c"
    assert outcomes(disk) == {b"a\xe2c"}


def test_the_same_seed_gives_the_same_crash() -> None:
    disk = made(content=b"abc")
    disk.open("/d/log").append([b"x" * 5000])
    first, second = copy.deepcopy(disk), copy.deepcopy(disk)
    first.crash(RealChance(7))
    second.crash(RealChance(7))
    assert first.read_file("/d/log") == second.read_file("/d/log")


def test_a_cold_cache_sends_readers_to_the_disk() -> None:
    disk = made(content=b"abc")
    disk.cold = True
    file = disk.open("/d/log")
    assert file.read_cached(0, 3) is None
    assert file.read(0, 3) == b"abc"
