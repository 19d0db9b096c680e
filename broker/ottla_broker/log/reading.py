"""Locates the extent (range of a segment file) that answers a fetch from an offset. [S]

Used by `Log.read` only, on the loop. Most reads are sequential, so the place where the last extents ended is
remembered by the offset that comes next; only a reader that jumps searches the index.

Extents end on batch boundaries wherever the index knows one: a client throws a cut-off batch away and asks
for it again, so bytes of half a batch are sent for nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from ottla_broker.log.scan import ColdRead
from ottla_broker.log.segment import Segment
from ottla_core.ports.disk import File
from ottla_core.records.batch import BatchHeader

T = TypeVar("T")

#: Readers that follow a partition at different places at the same time; more of them fall back to the index.
_REMEMBERED = 64


class Extent(NamedTuple):
    """Bytes to send. After a truncation or the deletion of the segment, reading `file` may raise ValueError."""

    file: File
    position: int
    size: int
    #: Base offset of the first batch, which may be before the offset asked for.
    first_offset: int
    #: Bytes from there to the end of the segment, or to what may be read of it: `size` if nothing was cut off.
    available: int


class NotLoaded(Exception):
    """The caller has to wait for the disk first: to load the indexes of a segment, to rebuild them, or to read a
    page of them or a header. `work` does it, on any thread: see `LogReader.warm`."""

    def __init__(self, segment: Segment, work: Callable[[], object]) -> None:
        super().__init__(f"{segment!r} is not in memory")
        self.work = work


def _look(wait: bool, segment: Segment, look: Callable[..., T], *args: int) -> T:
    """What a method of a segment says; without `wait`, `NotLoaded` if it has to wait."""
    if wait:
        return look(*args)
    if not segment.is_loaded:
        raise NotLoaded(segment, segment.load)
    try:
        return look(*args, cached=True)
    except ColdRead:
        raise NotLoaded(segment, partial(look, *args)) from None


class ExtentFinder:
    __slots__ = ("_next",)

    def __init__(self) -> None:
        #: Next offset of a sequential reader -> where its batch begins, and its header if that was read. In order of
        #: insertion.
        self._next: dict[int, tuple[Segment, int, BatchHeader | None]] = {}

    def forget(self) -> None:
        """The log was truncated, or segments were replaced or removed."""
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
        if header.base_offset >= limit_offset:
            return None
        size = segment.size
        if limit_offset < end_offset:
            size = self._limit(segments, segment, limit_offset, wait)
        elif segment is segments[-1]:
            self._remember(end_offset, segment, size)
        room = available = size - position
        if room > max_bytes:
            room = self._cut(segment, position, header, max_bytes, min_one, wait)
        return Extent(segment.file, position, room, header.base_offset, available) if room > 0 else None

    def _place(
        self, segments: list[Segment], offset: int, wait: bool
    ) -> tuple[Segment, int, BatchHeader] | None:
        known = self._next.get(offset)
        if known is not None:
            segment, position, read = known
            if position < segment.size:
                header = read or _look(wait, segment, segment.header_at, position)
                if header.base_offset <= offset <= header.last_offset:
                    return segment, position, header
        at = bisect_right(segments, offset, key=_base_of) - 1
        # A batch may be missing where compaction left a gap; then the next one that is there counts.
        for segment in segments[max(at, 0) :]:
            found = _look(wait, segment, segment.locate, offset)
            if found is not None:
                return segment, *found
        return None

    def _limit(self, segments: list[Segment], segment: Segment, limit_offset: int, wait: bool) -> int:
        """Where in `segment` the batches end that lie wholly below `limit_offset`."""
        known = self._next.get(limit_offset)
        if known is not None and known[0] is segment:
            return known[1]
        at = segments.index(segment) + 1
        if at < len(segments) and segments[at].base_offset <= limit_offset:
            return segment.size
        found = _look(wait, segment, segment.locate, limit_offset)
        if found is None:
            return segment.size
        position, header = found
        if header.base_offset == limit_offset:
            self._remember(limit_offset, segment, position, header)
        return position

    def _cut(
        self, segment: Segment, position: int, header: BatchHeader, max_bytes: int, min_one: bool, wait: bool
    ) -> int:
        """How many bytes to give when not all fit: up to a batch boundary, at least the first batch."""
        if header.size >= max_bytes:
            return header.size if min_one or header.size == max_bytes else 0
        entry = _look(wait, segment, segment.boundary_before, position + max_bytes)
        if entry is None or entry.position <= position:
            return max_bytes
        following = _look(wait, segment, segment.header_at, entry.position)
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
