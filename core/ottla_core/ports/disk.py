"""Files, as little of them as a log needs. Synchronous on purpose: see `ports.offload` for what may block.

Durability is explicit. A write is in the page cache until `File.sync`; a new, renamed or removed name is only
sure after `Disk.sync_dir` of its folder. The simulated disk forgets or tears what was not synced, so code that
forgets a sync is caught there.

A `File` is a logical handle: the real disk keeps a bounded number of descriptors open behind all handles and
reopens the others on use. Errors are `OSError` as the operating system gave them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class File(Protocol):
    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Bytes written so far, kept in memory: costs no system call after opening."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers, in order, at the end; give back the position where they begin.

        Short writes are continued. On an error the file is cut back to its former size before raising, so
        that a full disk never leaves half a batch behind.
        """

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file. May block on the disk."""

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Like `read`, but only from memory: None when the disk would have to be waited for."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Make all appended bytes survive a power loss. Blocks; run it through `Offload` on a broker."""

    def close(self) -> None:
        """Release the descriptor. A closed handle is not used again."""


class FolderLock(Protocol):
    def release(self) -> None:
        """Give the folder back; fine if that was done. It also goes with the process."""


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending. Without `create`, FileNotFoundError if it is not there."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted."""

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents; fine if it exists."""

    def rename(self, source: str, target: str) -> None:
        """Atomically, replacing a file at `target`. Open handles to `source` are to be closed before."""

    def remove(self, path: str) -> None:
        """Remove a file; fine if it is gone."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all in it; fine if it is gone."""

    def read_file(self, path: str) -> bytes:
        """The whole of a small file."""

    def write_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace a small file as a whole: a reader, also after a crash, sees the old or the new one.

        Without `sync` that holds when the process dies; after a power loss the new one may be torn or empty.
        """

    def sync_dir(self, path: str) -> None:
        """Make names created, renamed or removed in this folder survive a power loss."""

    def free_bytes(self, path: str) -> int:
        """Room left on the volume that holds `path`."""

    def total_bytes(self, path: str) -> int:
        """Size of that volume."""

    def lock(self, path: str) -> FolderLock:
        """Take a folder for this process alone. BlockingIOError while somebody else has it."""
