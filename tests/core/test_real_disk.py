"""The real disk where the simulated one has nothing to show: descriptors, threads, the kernel."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from ottla_core.ports.disk import Buffer
from ottla_core.real.disk import RealDisk, default_open_files_max


def descriptors_on(folder: Path) -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
        except FileNotFoundError:
            pass
    return count


def test_descriptors_stay_bounded_and_the_least_recent_goes(tmp_path: Path) -> None:
    disk = RealDisk(open_files_max=4)
    files = [disk.open(str(tmp_path / f"{number}"), create=True) for number in range(20)]
    assert descriptors_on(tmp_path) == 0
    for file in files:
        file.append([b"x"])
        assert disk.open_files == descriptors_on(tmp_path) <= 4
    files[16].read(0, 1)
    files[0].read(0, 1)
    assert [file in disk._open for file in (files[0], files[16], files[17], files[18])] == [
        True,
        True,
        False,
        True,
    ]
    for file in files:
        file.close()
    assert disk.open_files == descriptors_on(tmp_path) == 0


def test_a_descriptor_in_use_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync hangs in a thread while the loop uses other files, and even closes this one."""
    disk = RealDisk(open_files_max=1)
    slow = disk.open(str(tmp_path / "slow"), create=True)
    slow.append([b"x"])
    inside, go_on = threading.Event(), threading.Event()
    seen: list[int] = []
    fdatasync = os.fdatasync

    def hanging(fd: int) -> None:
        inside.set()
        assert go_on.wait(10)
        fdatasync(fd)
        seen.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fdatasync", hanging)
    thread = threading.Thread(target=slow.sync)
    thread.start()
    assert inside.wait(10)
    for number in range(5):
        disk.open(str(tmp_path / f"other{number}"), create=True).append([b"y"])
    slow.append([b"z"])
    slow.close()
    assert descriptors_on(tmp_path) == 2
    go_on.set()
    thread.join(10)
    assert seen == [os.stat(tmp_path / "slow").st_ino]
    assert descriptors_on(tmp_path) == 1
    assert disk.read_file(str(tmp_path / "slow")) == b"xz"


def test_threads_and_evictions_together(tmp_path: Path) -> None:
    disk = RealDisk(open_files_max=2)
    files = [disk.open(str(tmp_path / f"{number}"), create=True) for number in range(8)]
    for number, file in enumerate(files):
        file.append([bytes([number]) * 100])
    wrong: list[object] = []

    def reads(start: int) -> None:
        for turn in range(400):
            number = (start + turn) % 8
            try:
                data = files[number].read(0, 100)
            except (OSError, ValueError) as error:
                wrong.append(error)
                return
            if data != bytes([number]) * 100:
                wrong.append((number, data))

    threads = [threading.Thread(target=reads, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(400):
        files[turn % 8].append([b"more"])
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert disk.open_files <= 2
    assert descriptors_on(tmp_path) == disk.open_files
    assert files[0].size() == 300 == os.stat(files[0].path).st_size


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev

    def short(fd: int, buffers: list[bytes], position: int) -> int:
        data = b"".join(buffers)
        return pwritev(fd, [data[:7]], position)

    disk = RealDisk()
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append([b"before"])
    monkeypatch.setattr(os, "pwritev", short)
    data: list[Buffer] = [b"abc", b"", b"defghijkl", memoryview(b"mnopqrst"), bytearray(b"u")]
    assert file.append(data) == 6
    assert file.read(0, 100) == b"beforeabcdefghijklmnopqrstu"


def test_a_failed_sync_stays_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "no")

    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"x"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(OSError, match="no"):
            file.sync()
    with pytest.raises(OSError, match="earlier sync failed") as again:
        file.sync()
    assert again.value.errno == errno.EIO


def test_a_cold_page_is_not_waited_for(tmp_path: Path) -> None:
    if not _can_drop_pages(tmp_path):
        pytest.skip("the page cache cannot be dropped here")
    file = RealDisk().open(str(tmp_path / "a"), create=True)
    file.append([b"x" * 4_000_000])
    file.sync()
    fd = os.open(file.path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    assert file.read_cached(0, 4_000_000) is None
    assert file.read(0, 4_000_000) == b"x" * 4_000_000
    assert file.read_cached(0, 4_000_000) == b"x" * 4_000_000


def _can_drop_pages(folder: Path) -> bool:
    path = folder / "probe"
    path.write_bytes(b"x" * 4_000_000)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.preadv(fd, [bytearray(4096)], 2_000_000, os.RWF_NOWAIT) == 0
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def test_too_many_open_files_elsewhere_evicts_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(open_files_max=100)
    files = [disk.open(str(tmp_path / f"{number}"), create=True) for number in range(5)]
    for file in files[:4]:
        file.append([b"x"])
    os_open = os.open
    refusals = [OSError(errno.EMFILE, "too many"), OSError(errno.EMFILE, "too many")]

    def crowded(path: str, flags: int, mode: int = 0o777) -> int:
        if refusals:
            raise refusals.pop()
        return os_open(path, flags, mode)

    monkeypatch.setattr(os, "open", crowded)
    assert files[4].append([b"y"]) == 0
    assert disk.open_files == 3


def test_the_default_leaves_descriptors_for_others() -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 1 <= default_open_files_max() <= 16_384
    if soft != resource.RLIM_INFINITY:
        assert default_open_files_max() <= max(8, soft // 2)
    with pytest.raises(ValueError, match="at least 1"):
        RealDisk(open_files_max=0)
