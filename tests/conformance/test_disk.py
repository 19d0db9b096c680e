"""What every `Disk` does, real or simulated: one suite for both."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla_core.ports.disk import Disk
from ottla_core.real.disk import RealDisk
from sim.disk import SimDisk


@dataclass
class Place:
    disk: Disk
    root: str

    def path(self, *names: str) -> str:
        return "/".join([self.root, *names])


@pytest.fixture(params=["real", "real-one-descriptor", "real-tmpfs", "sim"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sim":
        disk = SimDisk()
        disk.make_dirs("/data")
        yield Place(disk, "/data")
    elif request.param == "real-tmpfs":
        # tmpfs knows no RWF_NOWAIT: the inline fallback.
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("no tmpfs here")
        root = tempfile.mkdtemp(dir="/dev/shm")
        yield Place(RealDisk(), root)
        shutil.rmtree(root)
    else:
        yield Place(
            RealDisk(open_files_max=1 if request.param == "real-one-descriptor" else None), str(tmp_path)
        )


def test_append_gives_the_position_and_size_follows(place: Place) -> None:
    file = place.disk.open(place.path("a"), create=True)
    assert file.path == place.path("a")
    assert file.size() == 0
    assert file.append([b"one", bytearray(b"two")]) == 0
    assert file.append([memoryview(b"xthreex")[1:-1]]) == 6
    assert file.append([]) == 11
    assert file.append([b"", b"!"]) == 11
    assert file.size() == 12
    assert file.read(0, 100) == b"onetwothree!"
    file.close()
    again = place.disk.open(place.path("a"))
    assert again.size() == 12
    assert again.append([b"?"]) == 12
    assert again.read(3, 10) == b"twothree!?"


def test_more_buffers_than_one_writev_takes(place: Place) -> None:
    buffers = [b"%06d" % number for number in range(2500)]
    file = place.disk.open(place.path("many"), create=True)
    file.append([b"start"])
    assert file.append(buffers) == 5
    assert file.size() == 5 + 6 * 2500
    assert file.read(5, 6 * 2500) == b"".join(buffers)


@pytest.mark.parametrize("method", ["read", "read_cached"])
def test_reads_stop_at_the_end(place: Place, method: str) -> None:
    file = place.disk.open(place.path("a"), create=True)
    read = getattr(file, method)
    assert read(0, 10) == b""
    file.append([b"0123456789" * 20_000])
    assert read(0, 4) == b"0123"
    assert read(199_995, 100) == b"56789"
    assert read(200_000, 1) == b""
    assert read(300_000, 1) == b""
    assert read(5, 0) == b""
    assert read(0, 1 << 40) == b"0123456789" * 20_000
    assert isinstance(read(0, 100_000), bytes)


def test_truncate_cuts_and_appends_go_on_from_there(place: Place) -> None:
    file = place.disk.open(place.path("a"), create=True)
    file.append([b"0123456789"])
    file.truncate(4)
    assert file.size() == 4
    assert file.read(0, 10) == b"0123"
    assert file.append([b"xy"]) == 4
    assert file.read(0, 10) == b"0123xy"
    with pytest.raises(ValueError, match="cannot be cut"):
        file.truncate(7)
    file.truncate(0)
    assert file.size() == 0
    assert file.read(0, 10) == b""


def test_a_closed_handle_is_refused(place: Place) -> None:
    file = place.disk.open(place.path("a"), create=True)
    file.append([b"x"])
    file.sync()
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)
    with pytest.raises(ValueError, match="closed"):
        file.append([b"y"])
    with pytest.raises(ValueError, match="closed"):
        file.sync()
    assert place.disk.open(place.path("a")).size() == 1


def test_many_handles_at_once(place: Place) -> None:
    files = [place.disk.open(place.path(f"f{number}"), create=True) for number in range(30)]
    for _ in range(3):
        for number, file in enumerate(files):
            file.append([b"%02d" % number])
    for number, file in enumerate(files):
        assert file.read_cached(0, 100) == b"%02d" % number * 3
        file.sync()


def test_open_without_create_wants_the_file(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.open(place.path("missing"))
    with pytest.raises(FileNotFoundError):
        place.disk.open(place.path("no", "folder"), create=True)
    assert not place.disk.exists(place.path("missing"))
    place.disk.open(place.path("missing"), create=True).close()
    assert place.disk.exists(place.path("missing"))


def test_folders_list_and_remove(place: Place) -> None:
    disk = place.disk
    disk.make_dirs(place.path("t", "deep"))
    disk.make_dirs(place.path("t", "deep"))
    for name in ("b", "a", "c"):
        disk.open(place.path("t", name), create=True).close()
    assert disk.list(place.path("t")) == ["a", "b", "c", "deep"]
    disk.remove(place.path("t", "b"))
    disk.remove(place.path("t", "b"))
    assert disk.list(place.path("t")) == ["a", "c", "deep"]
    with pytest.raises(IsADirectoryError):
        disk.remove(place.path("t", "deep"))
    disk.remove_tree(place.path("t"))
    disk.remove_tree(place.path("t"))
    assert not disk.exists(place.path("t"))
    with pytest.raises(FileNotFoundError):
        disk.list(place.path("t"))


def test_rename_replaces_files_and_moves_folders(place: Place) -> None:
    disk = place.disk
    disk.write_file(place.path("new"), b"new")
    disk.write_file(place.path("old"), b"old")
    disk.rename(place.path("new"), place.path("old"))
    assert not disk.exists(place.path("new"))
    assert disk.read_file(place.path("old")) == b"new"
    disk.make_dirs(place.path("topic-0"))
    disk.write_file(place.path("topic-0", "log"), b"records")
    disk.rename(place.path("topic-0"), place.path("topic-0.x-delete"))
    assert disk.list(place.path("topic-0.x-delete")) == ["log"]
    assert disk.read_file(place.path("topic-0.x-delete", "log")) == b"records"
    assert not disk.exists(place.path("topic-0"))
    with pytest.raises(FileNotFoundError):
        disk.rename(place.path("gone"), place.path("x"))


@pytest.mark.parametrize("sync", [True, False])
def test_write_file_replaces_the_whole(place: Place, sync: bool) -> None:
    disk = place.disk
    disk.write_file(place.path("checkpoint"), b"a longer first version", sync=sync)
    disk.write_file(place.path("checkpoint"), b"second", sync=sync)
    assert disk.read_file(place.path("checkpoint")) == b"second"
    assert disk.list(place.root) == ["checkpoint"]
    with pytest.raises(FileNotFoundError):
        disk.read_file(place.path("none"))


def test_sync_dir_and_the_size_of_the_volume(place: Place) -> None:
    place.disk.sync_dir(place.root)
    assert 0 < place.disk.free_bytes(place.root) <= place.disk.total_bytes(place.root)
    with pytest.raises(FileNotFoundError):
        place.disk.sync_dir(place.path("none"))
    with pytest.raises(FileNotFoundError):
        place.disk.free_bytes(place.path("none"))
    with pytest.raises(FileNotFoundError):
        place.disk.total_bytes(place.path("none"))


def test_a_full_disk_leaves_no_half_append(place: Place, tmp_path: Path) -> None:
    """The real one is filled by a file size limit: the kernel then writes a part and refuses the rest."""
    file = place.disk.open(place.path("a"), create=True)
    file.append([b"safe"])
    if isinstance(place.disk, SimDisk):
        place.disk.capacity_bytes = 10_000
        with pytest.raises(OSError) as full:
            file.append([b"x" * 6_000, b"y" * 6_000])
        place.disk.capacity_bytes = 1 << 30
    else:
        import resource
        import signal

        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            with pytest.raises(OSError) as full:
                file.append([b"x" * 6_000, b"y" * 6_000])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, old)
        assert os.stat(file.path).st_size == 4
    assert full.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert file.size() == 4
    assert file.read(0, 100) == b"safe"
    assert file.append([b" again"]) == 4
    assert file.read(0, 100) == b"safe again"


def test_a_folder_is_taken_by_one_at_a_time(place: Place) -> None:
    place.disk.make_dirs(place.path("taken"))
    place.disk.make_dirs(place.path("other"))
    lock = place.disk.lock(place.path("taken"))
    with pytest.raises(BlockingIOError):
        place.disk.lock(place.path("taken"))
    place.disk.lock(place.path("other")).release()
    lock.release()
    lock.release()
    again = place.disk.lock(place.path("taken"))
    lock.release()  # An old one does not open what another has taken since.
    with pytest.raises(BlockingIOError):
        place.disk.lock(place.path("taken"))
    again.release()
    with pytest.raises(FileNotFoundError):
        place.disk.lock(place.path("nowhere"))
    assert place.disk.list(place.path("taken")) == []
