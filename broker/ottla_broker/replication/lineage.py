"""Leader epochs of two logs, compared to find where they diverge (KIP-101, KIP-279, KIP-320). [P]

A log's lineage is its (epoch, start offset) pairs. Two logs that hold the same epoch at an offset hold the same
batches up to it, because one leader wrote that epoch, in order. So a follower's (last epoch, end offset) is enough:
if the leader has that epoch at least up to there, the follower's log is a prefix; else it is truncated where they
diverge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ottla_core.ids import NO_EPOCH

NO_OFFSET = -1


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


def end_of(entries: Sequence[tuple[int, int]], epoch: int, log_end: int) -> EpochEnd:
    """The greatest known epoch that is not above `epoch`, and where it ends."""
    after = bisect_right(entries, epoch, key=_epoch)
    if not after:
        # Older than all known epochs: it ended where the first one began, and everything before was committed and
        # deleted.
        return EpochEnd(epoch, entries[0][1] if entries else log_end)
    end = entries[after][1] if after < len(entries) else log_end
    return EpochEnd(entries[after - 1][0], end)


def leading(entries: Sequence[tuple[int, int]], leader_epoch: int, start: int) -> Sequence[tuple[int, int]]:
    """The lineage of a leader whose epoch may have written nothing yet."""
    if entries and entries[-1][0] >= leader_epoch:
        return entries
    return [*entries, (leader_epoch, start)]


def last_epoch(entries: Sequence[tuple[int, int]], end_offset: int) -> int:
    """The epoch of the last record; one that began at the end and wrote nothing does not count."""
    at = bisect_left(entries, end_offset, key=_start)
    return entries[at - 1][0] if at else NO_EPOCH


def agrees(entries: Sequence[tuple[int, int]], log_end: int, epoch: int, end_offset: int) -> EpochEnd | None:
    """None if a log that ends there is a prefix of this one, else the epoch and end offset to truncate it by."""
    if epoch == NO_EPOCH:
        # It is empty, so nothing can differ; it only must not be ahead.
        return None if end_offset <= log_end else EpochEnd(NO_EPOCH, log_end)
    known = end_of(entries, epoch, log_end)
    return None if known.epoch == epoch and end_offset <= known.end_offset else known


def cut_for(entries: Sequence[tuple[int, int]], leader_end: EpochEnd, end_offset: int) -> int:
    """Where a follower truncates, given the leader's greatest epoch not above its own, and that epoch's end."""
    if leader_end.epoch == NO_EPOCH:
        return min(leader_end.end_offset, end_offset)
    own = end_of(entries, leader_end.epoch, end_offset)
    return min(leader_end.end_offset, own.end_offset, end_offset)


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _start(entry: tuple[int, int]) -> int:
    return entry[1]
