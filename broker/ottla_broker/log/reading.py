"""From an offset to bytes in a file: which extent of which segment a fetch is answered with. [S]

Used by `Log.read` only, on the loop. Most reads are sequential, so the place where the last extents ended is
remembered by the offset that comes next; only a reader that jumps searches the index.

Extents end on batch boundaries wherever the index knows one: a client throws a cut-off batch away and asks
for it again, so bytes of half a batch are sent for nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ottla_broker.log.segment import Segment
from ottla_core.ports.disk import File
from ottla_core.records.batch import BatchHeader

#: Readers that follow a partition at different places at the same time; more of them fall back to the index.
_REMEMBERED = 64


class Extent(NamedTuple):
    """Bytes to send. Once the log is cut or the segment deleted, reading `file` may be a ValueError."""

    file: File
    position: int
    size: int
    #: Base offset of the first batch, which may be before the offset asked for.
    first_offset: int
    #: Bytes from there to the end of the segment, or to what may be read of it: `size` if nothing was cut off.
    available: int


class NotLoaded(Exception):
    """The indexes of a segment have to be read first, or even made anew: `segment.load()` does it, on any thread."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(f"{segment!r} is not loaded")
        self.segment = segment


class ExtentFinder:
    __slots__ = ("_next",)

    def __init__(self) -> None:
        #: Next offset of a sequential reader -> where its batch begins, and its header if that was read. In order of
        #: insertion.
        self._next: dict[int, tuple[Segment, int, BatchHeader | None]] = {}

    def forget(self) -> None:
        """The log was cut, or segments were replaced or removed."""
        self._next.clear()

    def find(
        self,
        segments: list[Segment],
        offset: int,
        max_bytes: int,
        limit_offset: int,
        end_offset: int,
        min_one: bool,
        wait: bool,
    ) -> Extent | None:
        """Bytes from the batch that holds `offset` on; see `Log.read`. The offset is within the log."""
        place = self._place(segments, offset, wait)
        if place is None:
            return None
        segment, position, header = place
        if not (wait or segment.is_loaded):
            raise NotLoaded(segment)  # It was sealed since this reader was here.
        if header.base_offset >= limit_offset:
            return None
        size = segment.size
        if limit_offset < end_offset:
            size = self._limit(segments, segment, limit_offset)
        elif segment is segments[-1]:
            self._remember(end_offset, segment, size)
        room = available = size - position
        if room > max_bytes:
            room = self._cut(segment, position, header, max_bytes, min_one)
        return Extent(segment.file, position, room, header.base_offset, available) if room > 0 else None

    def _place(
        self, segments: list[Segment], offset: int, wait: bool
    ) -> tuple[Segment, int, BatchHeader] | None:
        known = self._next.get(offset)
        if known is not None:
            segment, position, read = known
            if position < segment.size:
                header = read or segment.header_at(position)
                if header.base_offset <= offset <= header.last_offset:
                    return segment, position, header
        at = bisect_right(segments, offset, key=_base_of) - 1
        # A batch may be missing where compaction left a gap; then the next one that is there counts.
        for segment in segments[max(at, 0) :]:
            if not (wait or segment.is_loaded):
                raise NotLoaded(segment)
            found = segment.locate(offset)
            if found is not None:
                return segment, *found
        return None

    def _limit(self, segments: list[Segment], segment: Segment, limit_offset: int) -> int:
        """Where in `segment` the batches end that lie wholly below `limit_offset`."""
        known = self._next.get(limit_offset)
        if known is not None and known[0] is segment:
            return known[1]
        at = segments.index(segment) + 1
        if at < len(segments) and segments[at].base_offset <= limit_offset:
            return segment.size
        found = segment.locate(limit_offset)
        if found is None:
            return segment.size
        position, header = found
        if header.base_offset == limit_offset:
            self._remember(limit_offset, segment, position, header)
        return position

    def _cut(
        self, segment: Segment, position: int, header: BatchHeader, max_bytes: int, min_one: bool
    ) -> int:
        """How many bytes to give when not all fit: up to a batch boundary, at least the first batch."""
        if header.size >= max_bytes:
            return header.size if min_one or header.size == max_bytes else 0
        entry = segment.boundary_before(position + max_bytes)
        if entry is None or entry.position <= position:
            return max_bytes
        following = segment.header_at(entry.position)
        self._remember(following.base_offset, segment, entry.position, following)
        return entry.position - position

    def _remember(
        self, offset: int, segment: Segment, position: int, header: BatchHeader | None = None
    ) -> None:
        known = self._next
        if offset not in known and len(known) >= _REMEMBERED:
            del known[next(iter(known))]
        known[offset] = (segment, position, header)


def _base_of(segment: Segment) -> int:
    return segment.base_offset
