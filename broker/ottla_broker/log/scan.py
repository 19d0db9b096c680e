"""Scans the batches of a log file, header by header, with or without their CRCs. [P]

Called by segments (from an index entry to the batch wanted), by recovery, index rebuilds and deep checks.
Reads in bounded chunks whatever a header claims: a batch larger than a chunk has its CRC computed piece by
piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from crc32c import crc32c

from ottla_core.ports.disk import File
from ottla_core.records.batch import (
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    crc_of,
    header_at,
)

#: From an index entry to its neighbour there are about 4 KB; one read mostly covers them.
NEAR_BYTES = 4096 + HEADER_BYTES
#: For whole files: large enough that the system call is small beside the copy.
SCAN_BYTES = 1 << 20


class BadBatch(Exception):
    """Bytes in a log file that are no batch. The caller knows what that means for the partition."""

    def __init__(self, position: int, reason: str, *, is_cut_off: bool = False) -> None:
        super().__init__(f"{reason} (at byte {position})")
        self.position = position
        self.reason = reason
        #: The file ends before it does, as after a write that was under way when the process died.
        self.is_cut_off = is_cut_off


class ColdRead(Exception):
    """What is asked for is on the disk, and the caller does not wait for the disk."""


class Readable(Protocol):
    """As much of a `File` as looking something up needs."""

    def read(self, position: int, size: int) -> bytes: ...


class CachedOnly:
    """Reads from the page cache only. `ColdRead` for bytes that are not cached or unreadable: the caller then
    reads from the disk, and sees the error."""

    __slots__ = ("_file",)

    def __init__(self, file: File) -> None:
        self._file = file

    def read(self, position: int, size: int) -> bytes:
        try:
            data = self._file.read_cached(position, size)
        except OSError as error:
            raise ColdRead from error
        if data is None:
            raise ColdRead
        return data


def complaint(header: BatchHeader, room_bytes: int) -> str | None:
    """Why a header is invalid, as far as the header alone shows it; else None."""
    if header.magic != MAGIC:
        return f"magic {header.magic} instead of {MAGIC}"
    if header.length < HEADER_BYTES - LOG_OVERHEAD:
        return f"a length of {header.length}"
    if header.length + LOG_OVERHEAD > room_bytes:
        return f"a batch of {header.length + LOG_OVERHEAD} bytes with {room_bytes} bytes left"
    if header.base_offset < 0 or header.last_offset_delta < 0:
        return f"offsets {header.base_offset} + {header.last_offset_delta}"
    return None


def walk(
    file: Readable, position: int, end: int, *, check_crc: bool = False, chunk_bytes: int = NEAR_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in [position, end). Raises `BadBatch` at the first invalid one."""
    chunk, chunk_at = b"", position
    while position < end:
        at = position - chunk_at
        if at + HEADER_BYTES > len(chunk):
            chunk, chunk_at, at = file.read(position, min(chunk_bytes, end - position)), position, 0
            if len(chunk) < HEADER_BYTES:
                raise BadBatch(position, f"{len(chunk)} bytes, too few for a header", is_cut_off=True)
        header = header_at(chunk, at)
        problem = complaint(header, end - position)
        if problem is not None:
            is_longer = header.magic == MAGIC and header.size > end - position
            raise BadBatch(position, problem, is_cut_off=is_longer)
        if check_crc:
            inside = at + header.size <= len(chunk)
            crc = crc_of(chunk, at, header.size) if inside else _crc_from_file(file, position, header.size)
            if crc != header.crc:
                raise BadBatch(position, f"CRC {crc:08x} instead of {header.crc:08x}")
        yield position, header
        position += header.size


def _crc_from_file(file: Readable, position: int, size: int) -> int:
    """For a batch that does not end in the chunk at hand."""
    crc, at, end = 0, position + CRC_START, position + size
    while at < end:
        data = file.read(at, min(SCAN_BYTES, end - at))
        if not data:
            raise BadBatch(position, "the file ends inside the batch")
        crc = int(crc32c(data, crc))
        at += len(data)
    return crc
