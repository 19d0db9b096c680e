"""Decides which segments retention may delete. [P]

The log calls `expired` with its segments, oldest first, and removes as many as it says from the front. By
time and by size only where the topic's cleanup.policy has "delete"; segments below the log start offset
(DeleteRecords) always. Never the active segment, and never one that reaches above the committed offset: a
follower that still needs those records, or a new leader without them, would see them vanish (rule 13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla_broker.topic_config import TopicConfig


class SegmentFacts(NamedTuple):
    base_offset: int
    #: One past the last offset in it: the base offset of the next segment.
    end_offset: int
    size_bytes: int
    #: The newest record's timestamp; for a segment without any, the time it was last written.
    max_timestamp_ms: int


def expired(
    segments: Sequence[SegmentFacts],
    *,
    now_ms: int,
    config: TopicConfig,
    start_offset: int,
    committed_offset: int,
) -> int:
    """How many of the leading segments may be removed. The last one is the active one and stays."""
    may_go = 0
    for segment in segments[:-1]:
        if segment.end_offset > committed_offset:
            break
        may_go += 1
    candidates = segments[:may_go]
    return max(
        _below_start(candidates, start_offset),
        _too_old(candidates, now_ms, config) if config.deletes else 0,
        _too_much(candidates, sum(s.size_bytes for s in segments), config) if config.deletes else 0,
    )


def wants_roll(active: SegmentFacts, *, now_ms: int, config: TopicConfig, start_offset: int) -> bool:
    """Whether all that the active segment holds has expired: rolled, it can go in the next round. Without
    this the last records of a topic without new writes would stay for ever."""
    if active.size_bytes == 0:
        return False
    if active.end_offset <= start_offset:
        return True
    return config.deletes and _too_old((active,), now_ms, config) > 0


def _below_start(segments: Sequence[SegmentFacts], start_offset: int) -> int:
    count = 0
    for segment in segments:
        if segment.end_offset > start_offset:
            break
        count += 1
    return count


def _too_old(segments: Sequence[SegmentFacts], now_ms: int, config: TopicConfig) -> int:
    """Stops at the first segment that is young enough: offsets must stay without a hole at the front, so an
    old segment behind a younger one (timestamps come from producers) waits for it."""
    if config.retention_ms < 0:
        return 0
    count = 0
    for segment in segments:
        if now_ms - segment.max_timestamp_ms <= config.retention_ms:
            break
        count += 1
    return count


def _too_much(segments: Sequence[SegmentFacts], total_bytes: int, config: TopicConfig) -> int:
    """Only while what remains is not less than retention.bytes, which says how much is kept at least."""
    if config.retention_bytes < 0:
        return 0
    excess, count = total_bytes - config.retention_bytes, 0
    for segment in segments:
        if segment.size_bytes > excess:
            break
        excess -= segment.size_bytes
        count += 1
    return count
