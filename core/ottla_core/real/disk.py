"""Files of the operating system behind a bounded number of descriptors. [A]

Owns every descriptor of log files. A `RealFile` is a name and a size; its descriptor is opened on use and
closed again when others were used more recently: ten thousand partitions cost ten thousand small objects and
at most `open_files_max` descriptors.

Called on the loop (append, read_cached) and from offload threads (read, sync, compaction's own files). One
thread at a time appends to or truncates a given file; reads and syncs may run beside it. This keeps it safe:

* R1: every user of a descriptor holds a pin on its file; a pinned descriptor is never closed, neither by eviction
  nor by `close`.
* R2: `_fd`, `_pins` and the table of open files change only under the disk's one lock. `close` is the only system
  call under the lock, so the loop never waits for a thread that waits for the disk.
* R3: the size in memory is authoritative. Appends go to that position, so they overwrite bytes that a failed
  append left behind and could not cut off.

It must never hide a disk error, and never report a sync as done after one failed: the kernel drops
the dirty pages that it could not write, and the next fsync of the file succeeds although data is lost.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import os
import resource
import shutil
import threading
from collections import OrderedDict
from collections.abc import Sequence

from ottla_core.ports.disk import Buffer

#: Buffers per writev.
_IOV_MAX = os.sysconf("SC_IOV_MAX")
#: From this size on, zeroing memory before a read costs more than the workaround.
_ZEROING_HURTS_BYTES = 1 << 16
#: More descriptors have no benefit: reopening costs ~3 µs, and each holds kernel memory.
_OPEN_FILES_CAP = 16_384

_allocate_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_allocate_bytes.restype = ctypes.py_object
_allocate_bytes.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]


def default_open_files_max() -> int:
    """Half of the process's limit: the other half is for connections, etcd and libraries."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _OPEN_FILES_CAP
    return max(8, min(soft // 2, _OPEN_FILES_CAP))


class RealFile:
    """See `ports.disk.File`. Using a closed file is a ValueError, to distinguish it from a disk error.

    A file that grows has one handle: another would not see its size change.
    """

    __slots__ = ("_closed", "_disk", "_fd", "_nowait", "_path", "_pins", "_size", "_sync_failed")

    def __init__(self, disk: RealDisk, path: str, size: int) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        #: -1 while no descriptor is open.
        self._fd = -1
        #: Current users of the descriptor.
        self._pins = 0
        self._closed = False
        #: False if the filesystem does not support RWF_NOWAIT (tmpfs, some overlays).
        self._nowait = True
        self._sync_failed: OSError | None = None

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> int:
        position = self._size
        total = sum(map(len, buffers))
        fd = self._disk._pin(self)
        try:
            if len(buffers) <= _IOV_MAX and os.pwritev(fd, buffers, position) == total:
                self._size = position + total
                return position
            _write_rest(fd, buffers, position)
            self._size = position + total
            return position
        except BaseException:
            _cut_back(fd, position)
            raise
        finally:
            self._disk._unpin(self)

    def read(self, position: int, size: int) -> bytes:
        wanted = min(size, self._size - position)
        if wanted <= 0:
            return b""
        fd = self._disk._pin(self)
        try:
            data = os.pread(fd, wanted, position)
            if len(data) == wanted or not data:
                return data
            return _read_rest(fd, data, position, wanted)
        finally:
            self._disk._unpin(self)

    def read_cached(self, position: int, size: int) -> bytes | None:
        if not self._nowait:
            # tmpfs is in memory and never blocks; other such filesystems have no non-blocking read.
            return self.read(position, size)
        wanted = min(size, self._size - position)
        if wanted <= 0:
            return b""
        # Only preadv takes flags, and it needs a buffer. A BytesIO over bytes without other references
        # lends its memory and returns the same object: no extra copy from the page cache.
        holder = io.BytesIO(bytes(wanted) if wanted < _ZEROING_HURTS_BYTES else _allocate_bytes(None, wanted))
        fd = self._disk._pin(self)
        try:
            with holder.getbuffer() as view:
                got = os.preadv(fd, [view], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            self._nowait = False
            return self.read(position, size)
        finally:
            self._disk._unpin(self)
        return holder.getvalue() if got == wanted else None

    def truncate(self, size: int) -> None:
        if not 0 <= size <= self._size:
            raise ValueError(f"{self._path} has {self._size} bytes and cannot be cut to {size}.")
        fd = self._disk._pin(self)
        try:
            os.ftruncate(fd, size)
            self._size = size
        finally:
            self._disk._unpin(self)

    def sync(self) -> None:
        if self._sync_failed is not None:
            raise OSError(self._sync_failed.errno, "an earlier sync failed, data may be lost", self._path)
        fd = self._disk._pin(self)
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._sync_failed = error
            raise
        finally:
            self._disk._unpin(self)

    def close(self) -> None:
        self._disk._close(self)

    def __repr__(self) -> str:
        return f"RealFile({self._path!r}, size={self._size})"


class RealFolderLock:
    """flock on the folder itself: it leaves no file behind, and ends with the process in any case."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """See `ports.disk.Disk`."""

    def __init__(self, open_files_max: int | None = None) -> None:
        self._open_files_max = default_open_files_max() if open_files_max is None else open_files_max
        if self._open_files_max < 1:
            raise ValueError(f"open_files_max must be at least 1, not {open_files_max}.")
        self._lock = threading.Lock()
        #: Files with a descriptor, least recently used first.
        self._open: OrderedDict[RealFile, None] = OrderedDict()

    @property
    def open_files(self) -> int:
        """Open descriptors; above the maximum only while more than that are pinned at once."""
        return len(self._open)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        # stat, not open: a broker with ten thousand partitions then starts with few open files.
        try:
            return RealFile(self, path, os.stat(path).st_size)
        except FileNotFoundError:
            if not create:
                raise
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        return RealFile(self, path, 0)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        made = path + ".tmp"
        try:
            with open(made, "wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(made, path)
        except BaseException:
            self.remove(made)
            raise
        if sync:
            self.sync_dir(os.path.dirname(path) or ".")

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        volume = os.statvfs(path)
        return volume.f_bavail * volume.f_frsize

    def total_bytes(self, path: str) -> int:
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize

    def lock(self, path: str) -> RealFolderLock:
        return RealFolderLock(path)

    # --- descriptors: see R1 and R2 above ---

    def _pin(self, file: RealFile) -> int:
        with self._lock:
            if file._closed:
                raise ValueError(f"{file._path} is closed.")
            fd = file._fd
            if fd >= 0:
                file._pins += 1
                self._open.move_to_end(file)
                return fd
        return self._reopen(file)

    def _unpin(self, file: RealFile) -> None:
        with self._lock:
            file._pins -= 1
            if file._closed and not file._pins:
                self._release(file)

    def _reopen(self, file: RealFile) -> int:
        opened = self._open_descriptor(file._path)
        with self._lock:
            if file._closed or file._fd >= 0:
                os.close(opened)  # another thread opened it first, or closed the handle
                if file._closed:
                    raise ValueError(f"{file._path} is closed.")
            else:
                file._fd = opened
                self._open[file] = None
            file._pins += 1
            while len(self._open) > self._open_files_max and self._evict_one():
                pass
            return file._fd

    def _open_descriptor(self, path: str) -> int:
        while True:
            try:
                return os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                with self._lock:
                    if not self._evict_one():
                        raise

    def _evict_one(self) -> bool:
        """Close the least recently used descriptor; False if all are in use. The caller holds the lock."""
        for file in self._open:
            if not file._pins:
                self._release(file)
                return True
        return False

    def _close(self, file: RealFile) -> None:
        with self._lock:
            file._closed = True
            if not file._pins:
                self._release(file)

    def _release(self, file: RealFile) -> None:
        fd, file._fd = file._fd, -1
        if fd >= 0:
            del self._open[file]
            os.close(fd)


def _write_rest(fd: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write all `buffers` at `position`, with as many calls as needed, over a short write's data."""
    left = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    while left:
        written = os.pwritev(fd, left[:_IOV_MAX], position)
        if not written:
            raise OSError(errno.EIO, "the disk accepted no bytes without an error")
        position += written
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        del left[:done]
        if written:
            left[0] = left[0][written:]


def _cut_back(fd: int, size: int) -> None:
    """Best effort: the caller reports the original error, and R3 holds without this."""
    try:
        os.ftruncate(fd, size)
    except OSError:
        pass


def _read_rest(fd: int, data: bytes, position: int, wanted: int) -> bytes:
    """Continue after a short read (a signal, or more than 2 GB), up to the end of the file."""
    parts = [data]
    got = len(data)
    while got < wanted and (data := os.pread(fd, wanted - got, position + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)
