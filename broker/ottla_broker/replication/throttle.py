"""Token buckets that slow replicas down while they catch up (`*.replication.throttled.rate`). [P]

A bucket may be overdrawn by one section of a frame, because batches are not split; what follows waits until the debt is
paid. So the rate holds over time, whatever the size of batches. Kafka averages over 11 seconds and allows the bytes of
all of them at once; the bucket here holds a quarter of a second, so that a move has no burst at its begin.
"""

from __future__ import annotations

#: What an unused bucket saves up.
_BURST_S = 0.25
#: Waiting senders check again after this time at the latest: the rate may have been raised or removed.
RECHECK_S = 0.5


class Throttle:
    """One bucket, shared by all streams of a broker in one direction."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self) -> None:
        #: Bytes per second; None: not throttled.
        self.rate: int | None = None
        self._tokens = 0.0
        self._at = 0.0

    def set_rate(self, rate: int | None, now: float) -> None:
        if rate == self.rate:
            return
        self._refill(now)
        # A debt at the old rate must not block the new one: a raised rate counts from now on.
        self._tokens = 0.0 if rate is None else min(max(self._tokens, 0.0), rate * _BURST_S)
        self.rate = rate

    def room(self, now: float) -> int | None:
        """Bytes that may pass now, 0 or less while something is owed; None: any number."""
        if self.rate is None:
            return None
        self._refill(now)
        return int(self._tokens)

    def take(self, size: int, now: float) -> None:
        if self.rate is not None:
            self._refill(now)
            self._tokens -= size

    def wait_s(self, now: float) -> float:
        """Seconds until to check again; 0 if something may pass now."""
        room = self.room(now)
        if room is None or room > 0:
            return 0.0
        if not self.rate:
            return RECHECK_S
        # At least a millisecond of tokens, so that slow rates do not send byte by byte.
        wanted = max(1.0, self.rate / 1000)
        return min(RECHECK_S, max(0.001, (wanted - self._tokens) / self.rate))

    def _refill(self, now: float) -> None:
        if self.rate is not None:
            self._tokens = min(self.rate * _BURST_S, self._tokens + (now - self._at) * self.rate)
        self._at = now


class Throttles:
    """The throttles of one broker: as a leader, and as a follower."""

    __slots__ = ("follower", "leader")

    def __init__(self) -> None:
        self.leader = Throttle()
        self.follower = Throttle()

    def set_rates(self, leader: int | None, follower: int | None, now: float) -> None:
        self.leader.set_rate(leader, now)
        self.follower.set_rate(follower, now)
