"""Offline reading of a partition's files for `ottla log dump`: batches, records, and index checks. [A]

Uses the broker's own code and opens nothing for writing, so it is safe beside a running broker. A running
broker keeps the index of its newest segment in memory: there, an index that ends early is normal; an index
that disagrees with the log is not.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from ottla_broker.log.dir_files import DELETE_SUFFIX
from ottla_broker.log.files import INDEX, LOG, TIME_INDEX, file_name, parse_name
from ottla_broker.log.offset_index import BadIndex, OffsetIndex
from ottla_broker.log.scan import SCAN_BYTES, BadBatch, walk
from ottla_broker.log.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from ottla_broker.log.time_index import TimeIndex
from ottla_core.errors import RequestError
from ottla_core.real.disk import RealDisk
from ottla_core.records.batch import BatchHeader
from ottla_core.records.codec import Record, records_of

#: Limit for the decompressed size of one batch.
_DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


@dataclass
class Segment:
    """Findings about one segment; complete after all its batches were read."""

    path: str
    base_offset: int
    size_bytes: int
    batches: int = 0
    records: int = 0
    next_offset: int = 0
    first_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    compressions: dict[str, int] = field(default_factory=dict)
    index_entries: int | None = None
    time_index_entries: int | None = None
    problems: list[str] = field(default_factory=list)


def partition_folders(path: str) -> list[str]:
    """Folders with log files: the path itself, or folders one or two levels below it."""
    if _segment_names(path):
        return [path]
    found = []
    for folder in _folders_in(path):
        found += (
            [folder]
            if _segment_names(folder)
            else [sub for sub in _folders_in(folder) if _segment_names(sub)]
        )
    return found


def _folders_in(path: str) -> list[str]:
    """Subfolders, except those of deleted topics, which are about to be removed."""
    entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    return [entry.path for entry in entries if entry.is_dir() and not entry.name.endswith(DELETE_SUFFIX)]


def segments_of(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in _segment_names(folder)]


def _segment_names(folder: str) -> list[str]:
    found = []
    for name in sorted(os.listdir(folder)):
        parsed = parse_name(name)
        if parsed is not None and parsed.kind == LOG and not parsed.suffix:
            found.append(name)
    return found


class SegmentReader:
    """Reads one `.log` file and checks CRCs; `segment` fills while `batches` is consumed."""

    def __init__(self, disk: RealDisk, path: str) -> None:
        parsed = parse_name(os.path.basename(path))
        self._disk = disk
        self._file = disk.open(path)
        base = parsed.base_offset if parsed is not None else 0
        self.segment = Segment(path, base, self._file.size(), next_offset=base)
        self._folder = os.path.dirname(path)
        self._has_siblings = parsed is not None
        self._index = self._read_index()
        self._times = self._read_times()

    def batches(self) -> Iterator[tuple[int, BatchHeader]]:
        from ottla_core.records.compression import Compression

        segment = self.segment
        try:
            for position, header in walk(
                self._file, 0, segment.size_bytes, check_crc=True, chunk_bytes=SCAN_BYTES
            ):
                if header.base_offset < segment.next_offset:
                    segment.problems.append(
                        f"the batch at byte {position} begins at offset {header.base_offset}, "
                        f"but {segment.next_offset} was expected"
                    )
                segment.batches += 1
                segment.records += header.count
                segment.next_offset = header.next_offset
                if segment.first_timestamp_ms < 0:
                    segment.first_timestamp_ms = header.base_timestamp
                segment.max_timestamp_ms = max(segment.max_timestamp_ms, header.max_timestamp)
                codec = header.compression
                name = Compression(codec).name.lower() if codec <= Compression.ZSTD else f"unknown {codec}"
                segment.compressions[name] = segment.compressions.get(name, 0) + 1
                self._compare(position, header)
                yield position, header
        except BadBatch as bad:
            left = segment.size_bytes - bad.position
            segment.problems.append(f"{bad.reason} at byte {bad.position}; {left} bytes are left")
        for last_offset, position in self._index.items():
            segment.problems.append(
                f"the index says offset {last_offset} is at byte {position}; no such batch"
            )
        for offset in self._times:
            segment.problems.append(f"the time index names offset {offset}; no batch ends there")
        self._file.close()

    def records(self, position: int, header: BatchHeader) -> list[Record]:
        data = self._file.read(position, header.size)
        try:
            return records_of(data, 0, header, limit_bytes=_DECOMPRESSED_BYTES_MAX)
        except RequestError as bad:
            self.segment.problems.append(f"records of the batch at byte {position}: {bad.message}")
            return []

    # ------------------------------------------------------------------ indexes

    def _compare(self, position: int, header: BatchHeader) -> None:
        """Remove index entries that this batch confirms."""
        if self._index.get(header.last_offset) == position:
            del self._index[header.last_offset]
        timestamp_ms = self._times.get(header.last_offset)
        if timestamp_ms is not None:
            del self._times[header.last_offset]
            if timestamp_ms < self.segment.max_timestamp_ms:
                self.segment.problems.append(
                    f"the time index says nothing up to offset {header.last_offset} is newer than "
                    f"{timestamp_ms}, but {self.segment.max_timestamp_ms} is"
                )

    def _read_sibling(self, kind: str) -> bytes | None:
        if not self._has_siblings:
            return None
        try:
            return self._disk.read_file(f"{self._folder}/{file_name(self.segment.base_offset, kind)}")
        except FileNotFoundError:
            return None

    def _read_index(self) -> dict[int, int]:
        """File position by last offset."""
        data = self._read_sibling(INDEX)
        if data is None:
            return {}
        base = self.segment.base_offset
        try:
            self.segment.index_entries = len(OffsetIndex.decode(base, data))
        except BadIndex as bad:
            self.segment.problems.append(f"the index is damaged: {bad}")
            return {}
        return {base + relative: position for relative, position in _INDEX_ENTRY.iter_unpack(data)}

    def _read_times(self) -> dict[int, int]:
        """Timestamp by offset."""
        data = self._read_sibling(TIME_INDEX)
        if data is None:
            return {}
        base = self.segment.base_offset
        try:
            self.segment.time_index_entries = len(TimeIndex.decode(base, data))
        except BadIndex as bad:
            self.segment.problems.append(f"the time index is damaged: {bad}")
            return {}
        whole = data[: len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES]
        return {base + relative: timestamp for timestamp, relative in _TIME_ENTRY.iter_unpack(whole)}
