"""File operations that a log needs. Synchronous on purpose: see `ports.offload` for what may block.

Durability is explicit. A write is in the page cache until `File.sync`; a new, renamed or removed name is
durable only after `Disk.sync_dir` of its folder. The simulated disk drops or tears unsynced data, so it finds
missing syncs.

A `File` is a logical handle: the real disk keeps a bounded number of descriptors open behind all handles and
reopens the others on use. Errors are the `OSError`s of the operating system.
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
        """Write all buffers, in order, at the end; return the position where they begin.

        Short writes are continued. On an error the file is cut back to its former size before raising, so
        that a full disk never leaves half a batch behind.
        """

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file. May block on the disk."""

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Like `read`, but only from the page cache: None if the read would wait for the disk."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Make all appended bytes durable. Blocks; a broker runs it through `Offload`."""

    def close(self) -> None:
        """Release the descriptor. A closed handle cannot be used again."""


class FolderLock(Protocol):
    def release(self) -> None:
        """Release the folder; may be called repeatedly. The lock also ends with the process."""


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending. Without `create`, FileNotFoundError if it does not exist."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted."""

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents; no error if it exists."""

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing a file at `target`. Close handles to `source` before."""

    def remove(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder with its content; no error if it does not exist."""

    def read_file(self, path: str) -> bytes:
        """The content of a small file."""

    def write_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace a small file atomically: a reader sees the old or the new content, also after a crash.

        Without `sync` this covers a process crash only; after a power loss the new file may be torn or empty.
        """

    def sync_dir(self, path: str) -> None:
        """Make created, renamed and removed names in this folder durable."""

    def free_bytes(self, path: str) -> int:
        """Free space on the volume of `path`."""

    def total_bytes(self, path: str) -> int:
        """Size of that volume."""

    def lock(self, path: str) -> FolderLock:
        """Lock a folder for this process. BlockingIOError if another process holds it."""
