"""What scaling by lag remembers beyond its window, so that a steady load does not start and stop consumers. [P]

Lag alone cannot tell that fewer replicas would fall behind: consumers that keep up have none. So a number of replicas
that fell behind, while its committed offsets advanced, is remembered with the rate of records at that time, as an upper
bound of what one replica sustains. While records arrive at such a rate, fewer replicas are not tried again (`needed`).
With all replicas at work the bound never asks for more than are needed; it is too low if some of them did not run. It
expires for that reason, and because faster consumers may have been deployed.

`Quiet` is the stabilization window in two values, for the status of the resource: an operator that has just been
started has observed no window of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A remembered rate is forgotten after this time, or after ten windows if that is longer; then fewer are tried once.
FORGET_S = 3600.0
FORGET_WINDOWS = 10
#: Rates of one load differ a little from window to window.
TOLERANCE = 1.1


@dataclass(frozen=True, slots=True)
class TooFast:
    """Records per second and replica that consumers did not keep up with."""

    per_replica: float
    at_ms: int

    def is_valid(self, now_ms: int, window_s: float) -> bool:
        return now_ms - self.at_ms <= max(FORGET_S, FORGET_WINDOWS * window_s) * 1000


@dataclass(frozen=True, slots=True)
class Quiet:
    """Since when fewer replicas than the target has were recommended, and the most of these recommendations."""

    since_ms: int
    most: int


def tighter(known: TooFast | None, found: TooFast | None) -> TooFast | None:
    """The lower bound of two; at the same bound the later one, which is forgotten later."""
    if known is None or found is None:
        return known or found
    return found if found.per_replica <= known.per_replica else known


def needed(known: TooFast | None, rate: float) -> int:
    """The fewest replicas that may keep up with `rate`; 0: unknown."""
    if known is None or rate <= 0 or known.per_replica <= 0:
        return 0
    return int(rate * TOLERANCE / known.per_replica) + 1


def rate_of(written: Sequence[tuple[float, int]]) -> float:
    """Records per second between the first and the last of (time in seconds, records so far)."""
    (began_s, first), (ended_s, last) = written[0], written[-1]
    return max(0.0, (last - first) / (ended_s - began_s)) if ended_s > began_s else 0.0


def quiet(before: Quiet | None, now_ms: int, recommended: int, replicas: int) -> Quiet | None:
    if recommended >= replicas:
        return None
    if before is None:
        return Quiet(now_ms, recommended)
    return Quiet(before.since_ms, max(before.most, recommended))
