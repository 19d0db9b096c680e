"""The check of one closed segment: every CRC and the order of offsets, a piece at a time. [S]

`partition.scrubbing` runs each step on a thread. The segment may be truncated, replaced or removed meanwhile; then
`is_outdated` is true, and an error of a step says nothing about the log.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla_broker.log.scan import BadBatch, walk
from ottla_broker.log.segment import Segment
from ottla_core.records.batch import BatchHeader

#: Checked in one step: with batches of one small record, 2 ms of Python that other threads wait for.
STEP_BYTES = 256 * 1024


class SegmentScrub:
    __slots__ = ("_cuts", "_end_offset", "_from_offset", "_segment", "_walk", "next_offset")

    def __init__(self, segment: Segment, from_offset: int, end_offset: int) -> None:
        """`end_offset`: where the next segment begins."""
        self._segment = segment
        self._cuts = segment.cuts
        self._from_offset = from_offset
        self._end_offset = end_offset
        self._walk: Iterator[tuple[int, BatchHeader]] | None = None
        #: All below it has been checked.
        self.next_offset = max(from_offset, segment.base_offset)

    @property
    def is_outdated(self) -> bool:
        return self._segment.is_retired or self._segment.is_active or self._segment.cuts != self._cuts

    def step(self) -> int:
        """Check the next piece; return its bytes, 0 at the end. BadBatch or CorruptMessage for damage, OSError of the
        disk, ValueError if the file was closed."""
        checked = 0
        for position, header in self._batches():
            if not self.next_offset <= header.last_offset < self._end_offset:
                raise BadBatch(
                    position, f"offset {header.base_offset} out of order, {self.next_offset} comes next"
                )
            self.next_offset = header.next_offset
            checked += header.size
            if checked >= STEP_BYTES:
                return checked
        return checked

    def _batches(self) -> Iterator[tuple[int, BatchHeader]]:
        """Started once, and continued by each step."""
        if self._walk is None:
            segment, begin = self._segment, 0
            if self._from_offset > segment.base_offset:
                found = segment.locate(self._from_offset)
                begin = segment.size if found is None else found[0]
            self._walk = walk(segment.file, begin, segment.size, check_crc=True, chunk_bytes=STEP_BYTES)
        return self._walk
