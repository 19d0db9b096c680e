"""The high watermark: how far a partition is committed, from what its replicas have. [P]

Used by the leader machine at every append and every position, so it is one loop over a handful of numbers. The
reference implementation in set notation is in its test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: A replica that has not reported in this epoch on a live stream; it stops the high watermark.
UNKNOWN = -1


def committed(
    current: int,
    positions: Mapping[int, int],
    isr: Sequence[int],
    proposed: Sequence[int] | None,
    min_insync: int,
) -> int:
    """The high watermark that follows from the positions, never below `current`.

    Rule 6: while a proposal is pending both sets hold it back, and only replicas in both count as in sync.
    Rule 7: with fewer than `min_insync` it stands still.
    """
    if proposed is None:
        if len(isr) < min_insync:
            return current
        least = _least(positions, isr)
    else:
        if sum(1 for broker_id in isr if broker_id in proposed) < min_insync:
            return current
        least = min(_least(positions, isr), _least(positions, proposed))
    return least if least > current else current


def _least(positions: Mapping[int, int], brokers: Sequence[int]) -> int:
    return min((positions.get(broker_id, UNKNOWN) for broker_id in brokers), default=UNKNOWN)


def followed(current: int, received: int, end_offset: int) -> int:
    """A follower's high watermark: the leader's, up to the follower's log end; it never decreases."""
    return max(current, min(received, end_offset))
