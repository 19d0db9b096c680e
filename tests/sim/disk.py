"""A disk in memory that knows what was synced and what was not: the simulated twin of `ottla_core.real.disk`.

Two ways to die, both leave a disk that a reborn process opens again; handles from before are dead:

* `kill()`: the process ends (kill -9). All that reached the page cache stays, also what was never synced.
* `crash(chance)`: power is lost. Only what was synced is sure.

What a power loss may do here, and a correct log must survive:

* Bytes appended since the last `File.sync` are lost, or a prefix of them stays, or all; behind the prefix may
  lie zeros, garbage or even the right bytes, sector by sector: pages reach the platter in any order.
* A truncation that was not synced is undone, also behind new bytes: old data reappears at the tail.
* Names created, renamed or removed since the last `Disk.sync_dir` of their folder: some first part of these
  changes stays, the rest never happened. A synced file whose name was not synced is gone. A rename is all or
  nothing.
* `write_file(sync=False)`: the old file, or the new one whole, torn or empty.

Faults that may come at any time, and a correct log must report and not spread: a full volume
(`capacity_bytes`), an error of any operation (`fail`), bits that rot (`rot`). A failed sync is final: the
kernel forgets the dirty pages, so what was unsynced stays readable but need not survive, whatever a later
sync on a new handle says.

What a log need not survive, so it is not modelled: rot of synced bytes with no other replica to repair from,
synced data lost, a rename torn in two, a folder whose entries point elsewhere.

`stop_after(n, chance)` dies in the middle of things: the n-th changing operation from now raises `Stopped`,
an append having written some of its bytes. From then on every operation raises it, until `kill` or `crash`.
To look at many outcomes of one moment, crash copies: `copy.deepcopy(disk).crash(chance)`.
"""

from __future__ import annotations

import errno
import os
import pickle
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ottla_core.ports.chance import Chance
from ottla_core.ports.disk import Buffer

_SECTOR_BYTES = 512
_PLENTY_BYTES = 1 << 50


class Stopped(BaseException):
    """The process has died here. Not an Exception: no handler of the code under test may survive it."""


@dataclass(eq=False)
class _Inode:
    #: What reads see: the page cache.
    content: bytearray = field(default_factory=bytearray)
    #: What the platter holds for sure.
    synced: bytearray = field(default_factory=bytearray)
    #: So many first bytes are the same in both.
    stable: int = 0
    #: A sync failed: its pages are clean to the kernel, so no later sync writes them.
    forgotten: bool = False

    def sync(self) -> None:
        if not self.forgotten:
            self.synced[self.stable :] = self.content[self.stable :]
            self.stable = len(self.content)

    def cut(self, size: int) -> None:
        del self.content[size:]
        self.stable = min(self.stable, size)

    def lose_power(self, chance: Chance) -> None:
        new, old = self.content[self.stable :], self.synced[self.stable :]
        kept = (0, len(new), chance.below(len(new) + 1), chance.below(len(new) + 1))
        outcome = chance.below(4)
        tail = new[: kept[outcome]]
        if outcome == 3:
            tail += _torn(new[len(tail) :], chance)
        if old and chance.below(2):
            tail += old[len(tail) :]
        self.synced[self.stable :] = tail
        self.content = bytearray(self.synced)
        self.stable = len(self.content)
        self.forgotten = False


def _torn(lost: Buffer, chance: Chance) -> bytes:
    """What may lie where unsynced bytes were to be: in each sector zeros, garbage or the truth."""
    size = chance.below(len(lost) + 1)
    parts = []
    for start in range(0, size, _SECTOR_BYTES):
        room = min(_SECTOR_BYTES, size - start)
        kind = chance.below(3)
        if kind == 0:
            parts.append(bytes(room))
        elif kind == 1:
            parts.append((chance.below(1 << 62).to_bytes(8, "big") * (_SECTOR_BYTES // 8))[:room])
        else:
            parts.append(bytes(lost[start : start + room]))
    return b"".join(parts)


class _Folder:
    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Folder] = {}
        self.synced: dict[str, _Inode | _Folder] = {}


#: One atomic change of names: (folder, name, what it now stands for or None).
_NameChange = list[tuple[_Folder, str, "_Inode | _Folder | None"]]


@dataclass
class _Fault:
    operation: str
    path_end: str
    code: int
    times: int
    #: So many operations succeed before.
    after: int = 0


class SimFile:
    """See `ports.disk.File`."""

    def __init__(self, disk: SimDisk, path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.lives
        self._closed = False
        self._sync_failed: OSError | None = None

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self._inode.content)

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        data = b"".join(buffers)
        position = len(self._inode.content)
        try:
            self._disk._change("append", self._path)
        except Stopped:
            # The write was under way: some of it is in the page cache.
            self._inode.content += data[: self._disk._below(len(data) + 1)]
            raise
        self._disk._use_room(len(data), self._path)
        self._inode.content += data
        return position

    def read(self, position: int, size: int) -> bytes:
        self._check()
        self._disk._fault("read", self._path)
        return bytes(self._inode.content[position : position + max(0, size)])

    def read_cached(self, position: int, size: int) -> bytes | None:
        self._check()
        return None if self._disk.cold else self.read(position, size)

    def truncate(self, size: int) -> None:
        self._check()
        if not 0 <= size <= self.size():
            raise ValueError(f"{self._path} has {self.size()} bytes and cannot be cut to {size}.")
        self._disk._change("truncate", self._path)
        self._disk._use_room(size - self.size(), self._path)
        self._inode.cut(size)

    def sync(self) -> None:
        self._check()
        if self._sync_failed is not None:
            raise OSError(self._sync_failed.errno, "an earlier sync failed, data may be lost", self._path)
        try:
            self._disk._change("sync", self._path)
        except OSError as error:
            self._sync_failed = error
            self._inode.forgotten = True
            raise
        self._inode.sync()

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._life != self._disk.lives:
            raise Stopped(f"{self._path} was opened by a process that is dead")
        if self._closed:
            raise ValueError(f"{self._path} is closed.")


class SimFolderLock:
    def __init__(self, locks: dict[str, object], path: str) -> None:
        self._locks, self._path = locks, path
        locks[path] = self

    def release(self) -> None:
        if self._locks.get(self._path) is self:
            del self._locks[self._path]


class SimDisk:
    """See `ports.disk.Disk`; faults and deaths as said at the top."""

    def __init__(self, *, capacity_bytes: int = _PLENTY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        #: True: nothing is in the page cache, `read_cached` gives None.
        self.cold = False
        #: Deaths so far. A handle belongs to one life.
        self.lives = 0
        #: How often each operation was asked for: group commit and the like can be counted.
        self.counts: Counter[str] = Counter()
        self._root = _Folder()
        self._unsynced_names: list[_NameChange] = []
        self._used_bytes = 0
        self._faults: list[_Fault] = []
        self._fuse: int | None = None
        self._chance: Chance | None = None
        #: Folders that a process of this life has taken.
        self._locks: dict[str, object] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> SimDisk:
        """Tests copy disks by the thousand, and pickle copies several times as fast as `copy` does."""
        made = type(self).__new__(type(self))
        made.__dict__.update(pickle.loads(pickle.dumps(self.__dict__, pickle.HIGHEST_PROTOCOL)))
        return made

    # --- the port ---

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._fault("open", path)
        node = self._find(path)
        if isinstance(node, _Folder):
            raise _os_error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise _os_error(errno.ENOENT, path)
            folder, name = self._parent(path)
            self._change("create", path)
            node = _Inode()
            self._rename([(folder, name, node)])
        return SimFile(self, path, node)

    def exists(self, path: str) -> bool:
        self._alive()
        return self._find(path) is not None

    def list(self, path: str) -> list[str]:
        self._alive()
        return sorted(self._folder(path).entries)

    def make_dirs(self, path: str) -> None:
        folder = self._root
        for name in _names(path):
            node = folder.entries.get(name)
            if isinstance(node, _Inode):
                raise _os_error(errno.EEXIST, path)
            if node is None:
                self._change("make_dirs", path)
                node = _Folder()
                self._rename([(folder, name, node)])
            folder = node

    def rename(self, source: str, target: str) -> None:
        node = self._find(source)
        if node is None:
            raise _os_error(errno.ENOENT, source)
        (old_folder, old_name), (new_folder, new_name) = self._parent(source), self._parent(target)
        replaced = new_folder.entries.get(new_name)
        if isinstance(replaced, _Folder) and replaced.entries:
            raise _os_error(errno.ENOTEMPTY, target)
        self._change("rename", source)
        if isinstance(replaced, _Inode) and replaced is not node:
            self._used_bytes -= len(replaced.content)
        self._rename([(old_folder, old_name, None), (new_folder, new_name, node)])

    def remove(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, _Folder):
            raise _os_error(errno.EISDIR, path)
        if node is not None:
            self._change("remove", path)
            folder, name = self._parent(path)
            self._used_bytes -= len(node.content)
            self._rename([(folder, name, None)])

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, _Inode):
            raise _os_error(errno.ENOTDIR, path)
        for name in list(node.entries):
            inner = posixpath.join(path, name)
            if isinstance(node.entries[name], _Folder):
                self.remove_tree(inner)
            else:
                self.remove(inner)
        self._change("remove_tree", path)
        folder, name = self._parent(path)
        self._rename([(folder, name, None)])

    def read_file(self, path: str) -> bytes:
        file = self.open(path)
        return file.read(0, file.size())

    def write_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._fault("write_file", path)
        made = path + ".tmp"
        self.remove(made)
        try:
            file = self.open(made, create=True)
            file.append([data])
            if sync:
                file.sync()
            self.rename(made, path)
        except OSError:
            self.remove(made)
            raise
        if sync:
            self.sync_dir(posixpath.dirname(path))

    def sync_dir(self, path: str) -> None:
        folder = self._folder(path)
        self._change("sync_dir", path)
        # With a change go all earlier ones of the folders it touches: else an old name comes back over a new.
        touched, done, kept = [folder], [], []
        for change in reversed(self._unsynced_names):
            folders = [moved[0] for moved in change]
            if any(one is other for one in folders for other in touched):
                touched += folders
                done.append(change)
            else:
                kept.append(change)
        self._unsynced_names = kept[::-1]
        for change in reversed(done):
            _apply_synced(change)

    def free_bytes(self, path: str) -> int:
        self._alive()
        if self._find(path) is None:
            raise _os_error(errno.ENOENT, path)
        return max(0, self.capacity_bytes - self._used_bytes)

    def total_bytes(self, path: str) -> int:
        self._alive()
        if self._find(path) is None:
            raise _os_error(errno.ENOENT, path)
        return self.capacity_bytes

    def lock(self, path: str) -> SimFolderLock:
        self._fault("lock", path)
        self._folder(path)
        key = "/".join(_names(path))
        if key in self._locks:
            raise _os_error(errno.EAGAIN, path)
        return SimFolderLock(self._locks, key)

    # --- deaths and faults ---

    def kill(self) -> None:
        """The process dies; the page cache lives on and reaches the platter later."""
        self._reborn()

    def crash(self, chance: Chance) -> None:
        """Power is lost: see the top."""
        for change in self._unsynced_names[: chance.below(len(self._unsynced_names) + 1)]:
            _apply_synced(change)
        self._unsynced_names.clear()
        for folder in _folders(self._root):
            folder.entries = dict(folder.synced)
        self._used_bytes = 0
        for inode in _inodes(self._root):
            inode.lose_power(chance)
            self._used_bytes += len(inode.content)
        self._reborn()

    def stop_after(self, operations: int, chance: Chance) -> None:
        """Die at a changing operation: 0 is the next one."""
        self._fuse, self._chance = operations, chance

    def fail(
        self, operation: str, path_end: str = "", code: int = errno.EIO, *, times: int = 1, after: int = 0
    ) -> None:
        """Let `times` operations of this name on paths ending so raise an OSError with this code, the first `after` of
        them excepted."""
        self._faults.append(_Fault(operation, path_end, code, times, after))

    def rot(self, path: str, position: int, mask: int = 1) -> None:
        """Flip bits of one byte, on the platter and in memory, without a word."""
        node = self._find(path)
        assert isinstance(node, _Inode)
        node.content[position] ^= mask
        if position < len(node.synced):
            node.synced[position] ^= mask

    def unsynced_bytes(self, path: str) -> int:
        node = self._find(path)
        assert isinstance(node, _Inode)
        return len(node.content) - node.stable

    # --- inside ---

    def _alive(self) -> None:
        if self._fuse is not None and self._fuse < 0:
            raise Stopped("the process is dead")

    def _fault(self, operation: str, path: str) -> None:
        self._alive()
        self.counts[operation] += 1
        for fault in self._faults:
            if fault.operation == operation and fault.times and path.endswith(fault.path_end):
                if fault.after:
                    fault.after -= 1
                    continue
                fault.times -= 1
                raise _os_error(fault.code, path)

    def _change(self, operation: str, path: str) -> None:
        """Every operation that changes something comes by here before it does so."""
        self._fault(operation, path)
        if self._fuse is not None:
            self._fuse -= 1
            self._alive()

    def _below(self, limit: int) -> int:
        return self._chance.below(limit) if self._chance is not None else 0

    def _use_room(self, size: int, path: str) -> None:
        if size > self.capacity_bytes - self._used_bytes and size > 0:
            raise _os_error(errno.ENOSPC, path)
        self._used_bytes += size

    def _rename(self, change: _NameChange) -> None:
        for folder, name, node in change:
            _set(folder.entries, name, node)
        self._unsynced_names.append(change)

    def _reborn(self) -> None:
        self.lives += 1
        self._fuse = self._chance = None
        self._faults.clear()
        self._locks.clear()

    def _find(self, path: str) -> _Inode | _Folder | None:
        node: _Inode | _Folder | None = self._root
        for name in _names(path):
            if not isinstance(node, _Folder):
                return None
            node = node.entries.get(name)
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if not isinstance(node, _Folder):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        *above, name = _names(path)
        return self._folder("/".join(above)), name


def _names(path: str) -> list[str]:
    return [name for name in posixpath.normpath(path).split("/") if name not in ("", ".")]


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _set(entries: dict[str, _Inode | _Folder], name: str, node: _Inode | _Folder | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _apply_synced(change: _NameChange) -> None:
    for folder, name, node in change:
        _set(folder.synced, name, node)


def _folders(root: _Folder) -> Iterator[_Folder]:
    """All folders that the platter knows."""
    yield root
    for node in root.synced.values():
        if isinstance(node, _Folder):
            yield from _folders(node)


def _inodes(root: _Folder) -> Iterator[_Inode]:
    for folder in _folders(root):
        for node in folder.synced.values():
            if isinstance(node, _Inode):
                yield node
