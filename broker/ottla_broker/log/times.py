"""Finds offsets by timestamp, and timestamps by offset. [S]

Finds the batch by indexes and headers; only that one batch is read and opened, to name the very record. Runs on an
offload thread, beside appends: it looks at a copy of the row of segments and at no state of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ottla_broker.log.aborted import AbortedTransaction
from ottla_broker.log.contents import timestamps
from ottla_broker.log.scan import BadBatch, walk
from ottla_broker.log.segment import Segment
from ottla_core.records.batch import LOG_APPEND_TIME_FLAG, NO_TIMESTAMP, BatchHeader, verify

#: Batches without a record for consumers that one search passes: some ten milliseconds on its thread.
SKIPPED_MAX = 2_000
#: Offsets for which aborted transactions are looked up at once, so that a long row of batches costs few look-ups.
_ABORTED_WINDOW = 10_000


class FoundTime(NamedTuple):
    offset: int
    timestamp_ms: int
    epoch: int


def find_time(
    segments: list[Segment], timestamp_ms: int, start_offset: int, limit_offset: int
) -> FoundTime | None:
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else limit_offset
        if segment.base_offset >= limit_offset:
            return None
        if following <= start_offset or segment.max_timestamp.timestamp_ms < timestamp_ms:
            continue
        from_offset = start_offset
        while (found := segment.find_time(timestamp_ms, from_offset)) is not None:
            position, header = found
            if header.base_offset >= limit_offset:
                return None
            record = _first_at(segment, position, header, timestamp_ms, start_offset)
            if record is not None:
                return record if record.offset < limit_offset else None
            # The header promised a timestamp that only records before the start have.
            from_offset = header.next_offset
    return None


class NextRecord(NamedTuple):
    """About the first record that a read_committed consumer still gets."""

    #: False if there is none: only markers, aborted transactions and batches that compaction emptied.
    exists: bool
    #: None if it is not known: the record has none, or the search passed SKIPPED_MAX batches.
    timestamp_ms: int | None


def next_record(segments: Sequence[Segment], offset: int, limit_offset: int) -> NextRecord:
    """The first record at or after `offset` and below `limit_offset`.

    Markers, and records of aborted transactions, have offsets, but consumers do not get them: one that commits the
    offset after its last record stays before them, and is up to date.
    """
    at = max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
    aborted = _Aborted(segments[at:], limit_offset)
    skipped = 0
    for segment in segments[at:]:
        found = segment.locate(offset)
        if found is None:
            continue
        cuts = segment.cuts
        try:
            for _, header in walk(segment.file, found[0], segment.size):
                if header.base_offset >= limit_offset:
                    return NextRecord(False, None)
                if header.count and not header.is_control and not aborted.has(header):
                    return NextRecord(True, interpolated(header, offset))
                skipped += 1
                if skipped > SKIPPED_MAX:
                    return NextRecord(True, None)
        except BadBatch as error:
            raise segment.damaged(str(error), cuts=cuts) from error
    return NextRecord(False, None)


class _Aborted:
    """Whether batches, asked in the order of their offsets, are of aborted transactions."""

    def __init__(self, segments: Sequence[Segment], limit_offset: int) -> None:
        self._segments = segments
        self._limit = limit_offset
        self._known_to = -1
        self._known: list[AbortedTransaction] = []

    def has(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        if header.last_offset >= self._known_to:
            self._look_up(header.base_offset, min(header.next_offset + _ABORTED_WINDOW, self._limit))
        return any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset <= each.last_offset
            for each in self._known
        )

    def _look_up(self, first: int, end: int) -> None:
        self._known, self._known_to = [], end
        for segment in self._segments:
            more, complete = segment.aborted.snapshot().collect(first, end)
            self._known += more
            if complete:
                return


def interpolated(header: BatchHeader, offset: int) -> int | None:
    """About the timestamp of the first record of the batch at or after `offset`, without opening the batch."""
    if header.max_timestamp == NO_TIMESTAMP:
        return None
    if header.attributes & LOG_APPEND_TIME_FLAG or header.last_offset_delta <= 0:
        return header.max_timestamp
    done = max(0, offset - header.base_offset) / header.last_offset_delta
    return round(header.base_timestamp + (header.max_timestamp - header.base_timestamp) * done)


def find_newest(segments: list[Segment], start_offset: int, limit_offset: int) -> FoundTime | None:
    newest, best = NO_TIMESTAMP, None
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else limit_offset
        if following > start_offset and segment.max_timestamp.timestamp_ms > newest:
            newest, best = segment.max_timestamp.timestamp_ms, segment
    if best is None:
        return None
    found = best.find_time(newest, start_offset)
    if found is None or found[1].base_offset >= limit_offset:
        return None
    return _first_at(best, *found, newest, start_offset)


def _first_at(
    segment: Segment, position: int, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> FoundTime | None:
    data = segment.file.read(position, header.size)
    if len(data) != header.size or not verify(data, 0, header):
        raise segment.damaged(f"a batch with a wrong CRC at byte {position}")
    for offset, timestamp in timestamps(data, header):
        if timestamp >= timestamp_ms and offset >= start_offset:
            return FoundTime(offset, timestamp, header.leader_epoch)
    return None
