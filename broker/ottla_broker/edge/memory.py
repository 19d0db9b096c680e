"""Memory that all connections of both protocols share: a budget, and buffers that are used again. [P]

Counted: requests that are still arriving, fetches of many partitions that wait for records, and answers to fetches from
the moment they are read until they are sent (`Hold`, then `owe`). A request that arrives whole in one read is not
counted, as it never leaves the shared receive buffer; so small requests go through even when the budget is used up.

A request is counted with its full size before its body is read. A granted connection can always finish, so there
is no deadlock; the others wait in a queue, first come, first served, and are not read. What they have
received so far is counted as parked, but decides nothing: it is only freed once its owner is granted.

A fetch never waits for memory: it gets less. Within the budget it gets what it asks for; beyond it one batch, and
far beyond it one small batch, so that every reader gets on, however many others do not take their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: Buffers kept for the next request: eight of a full megabyte, more of less.
_POOLED_BYTES_MAX = 8 << 20
_SMALLEST = 1 << 12
#: A batch up to this size is read whatever the memory is like.
_ALWAYS_BYTES = 1 << 16
#: Memory goes back to the operating system after so much of it was in use and is free again: below, keeping it is
#: cheaper than to ask for it again, which costs 2 ms of CPU per MB.
_TRIM_BYTES = 32 << 20

#: What a fetch that waits occupies per partition: what is wanted, what was found, who is called back.
WAITING_BYTES = 600
#: A fetch of so few partitions counts as little as a small request does: some kilobytes per connection.
_UNCOUNTED_PARTITIONS = 32

Granted: TypeAlias = Callable[[], None]


class Memory:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Requests that are granted and still arriving.
        self._reserved = 0
        #: Bytes received of requests that cannot go on: at most one receive buffer per connection.
        self._parked = 0
        #: Answers that their clients do not take.
        self._unsent = 0
        self._queue: dict[Granted, int] = {}
        self._pool: dict[int, list[bytearray]] = {}
        self._pooled = 0
        #: Fetches of many partitions that wait for records: apart, because they take no room from requests and answers.
        self.waiting = 0
        #: The most that was in use since memory was given back last.
        self._peak = 0

    @property
    def used(self) -> int:
        return self._reserved + self._parked + self._unsent

    @property
    def room(self) -> int:
        return max(0, self.limit - self.used)

    def reserve(self, size: int, granted: Granted) -> bool:
        """Take `size` bytes of the budget now, or be called by `granted` when they have been taken."""
        if not self._queue and self._fits(size):
            self._reserved += size
            return True
        self._queue[granted] = size
        return False

    def release(self, size: int) -> None:
        self._reserved -= size
        self._serve()

    def forget(self, granted: Granted) -> None:
        """Leave the queue."""
        if self._queue.pop(granted, None) is not None:
            self._serve()

    def park(self, change: int) -> None:
        self._parked += change

    def owe(self, change: int) -> None:
        self._unsent += change
        if change < 0:
            self._serve()
        elif self._unsent > self._peak:
            self._peak = self._unsent

    def should_trim(self) -> bool:
        """True if much memory was freed since the last call; called periodically."""
        self._peak = max(self._peak, self.used)
        if self._peak - self.used < _TRIM_BYTES or self.used > self._peak // 2:
            return False
        self._peak = self.used
        return True

    def _fits(self, size: int) -> bool:
        # One is always let in: a request above the whole budget could never be read otherwise.
        return self._reserved + self._unsent + size <= self.limit or self._reserved <= 0

    def _serve(self) -> None:
        while self._queue:
            granted, size = next(iter(self._queue.items()))
            if not self._fits(size):
                return
            del self._queue[granted]
            self._reserved += size
            granted()

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes with unspecified content."""
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        pooled = self._pool.get(capacity)
        if pooled:
            self._pooled -= capacity
            return pooled.pop()
        return bytearray(capacity)

    def give(self, buffer: bytearray) -> None:
        """Return a buffer to the pool. It must not be used any more."""
        capacity = len(buffer)
        if self._pooled + capacity <= _POOLED_BYTES_MAX:
            self._pooled += capacity
            self._pool.setdefault(capacity, []).append(buffer)


class Hold:
    """What the answer to one fetch occupies, from before it is read until its connection takes it over."""

    __slots__ = ("_full_bytes", "_held", "_memory", "_waiting", "polled_s")

    def __init__(self, memory: Memory, full_times: float) -> None:
        """`full_times` the budget is the limit beyond which only small batches are read."""
        #: How long the fetch waited for records, for the metrics.
        self.polled_s = 0.0
        self._memory = memory
        self._full_bytes = full_times * memory.limit
        self._held = 0
        #: What the fetch itself occupies while it waits for records.
        self._waiting = 0

    def wait(self, partitions: int) -> bool:
        """Count a fetch of so many partitions, before it waits for records. False if there is no room for that: then it
        must be answered at once."""
        if partitions <= _UNCOUNTED_PARTITIONS:
            return True
        size, memory = partitions * WAITING_BYTES, self._memory
        if memory.waiting + size > memory.limit:
            return False
        self._waiting = size
        memory.waiting += size
        return True

    def ask(self, size: int, first: int) -> int:
        """Count `size` bytes that are about to be read, `first` of them from the first partition. Returns how many may
        be read: all; less if there is no room, but at least `first`; or 0."""
        memory = self._memory
        self._return_records()
        granted = min(size, memory.room)
        if granted < first:
            is_full = memory.used + first > self._full_bytes
            granted = 0 if is_full and first > _ALWAYS_BYTES else first
        self._held = granted
        memory.owe(granted)
        return granted

    def polled(self, seconds: float) -> None:
        self.polled_s += seconds

    def release(self) -> None:
        self._return_records()
        self._memory.waiting -= self._waiting
        self._waiting = 0

    def _return_records(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._memory.owe(-held)

    def __del__(self) -> None:
        # An answer that is dropped on its way, with its task or its connection, is counted no longer.
        self.release()
