"""Finds offsets by timestamp: the first record at or after a time, and the newest one. [S]

Finds the batch by indexes and headers; only that one batch is read and opened, to name the very record. Runs on an
offload thread, beside appends: it looks at a copy of the row of segments and at no state of the log.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla_broker.log.contents import timestamps
from ottla_broker.log.segment import Segment
from ottla_core.records.batch import LOG_APPEND_TIME_FLAG, NO_TIMESTAMP, BatchHeader, verify


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
