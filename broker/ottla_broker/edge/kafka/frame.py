"""Kafka's framing, sans-I/O: four bytes of length, then as many of request. [P]

Bytes are received straight into the place where they are parsed. That is one buffer shared by all
connections, as long as requests arrive whole: reading, parsing and handling them happens in one callback of
the event loop, so no other connection can write into it meanwhile, and an idle connection owns no buffer at all.
What is left at the end of the callback moves to storage of its own, which has the exact size of the frame,
so that the rest of a long one is received without another copy and never runs into the next.

    space() -> where to receive · filled(n) · next() -> frame or None, until None · then keep(…) or drop()
"""

from __future__ import annotations

from struct import Struct

from ottla_broker.edge.kafka.decode import Malformed
from ottla_broker.edge.kafka.other_protocol import protocol_of
from ottla_broker.edge.memory import Memory

#: A batch of librdkafka's or Java's default size fits whole; larger reads would only leave the CPU's cache.
SHARED_BYTES = 1 << 17
#: Storage begins with at most this much and doubles as bytes really come: a length is a claim, not a fact.
_FIRST_BYTES_MAX = 1 << 20

_LENGTH = Struct(">i")
_PREFIX = _LENGTH.size
_KEY = Struct(">h")


class Framer:
    """The receiving side of one connection."""

    __slots__ = ("_end", "_max", "_memory", "_own", "_shared", "_size", "_start", "_view")

    def __init__(self, shared: memoryview, memory: Memory, frame_bytes_max: int) -> None:
        self._shared = shared
        self._memory = memory
        self._max = frame_bytes_max
        #: Where unread bytes lie, and between which places.
        self._view = shared
        self._start = 0
        self._end = 0
        #: This connection's storage under `_view`; None while that is the shared buffer.
        self._own: bytearray | None = None
        #: How far that storage will be filled.
        self._size = 0

    def allow(self, frame_bytes_max: int) -> None:
        """Change the maximum size of a frame, from the next one on."""
        self._max = frame_bytes_max

    @property
    def left(self) -> int:
        """Received bytes that were not returned yet."""
        return self._end - self._start

    def space(self) -> memoryview:
        if self._own is None:
            return self._shared
        return self._view[self._end : self._size]

    def filled(self, count: int) -> None:
        if self._own is None:
            self._view = self._shared
            self._start, self._end = 0, count
            return
        self._end += count
        capacity = len(self._view)
        if self._end == capacity < self._size:
            self._move(min(self._size, capacity * 2))

    def next(self) -> memoryview | None:
        """The next whole frame without its length; None if it is not all there. Valid until the next
        `keep`."""

        start = self._start
        available = self._end - start - _PREFIX
        if available < 0:
            return None
        (length,) = _LENGTH.unpack_from(self._view, start)
        if length < 0 or length > self._max:
            other = protocol_of(bytes(self._view[start : start + _PREFIX]))
            raise Malformed(other or f"a frame of {length} bytes, where {self._max} are allowed")
        if available < length:
            return None
        start += _PREFIX
        self._start = start + length
        return self._view[start : start + length]

    def peek(self) -> int | None:
        """The API key of the next whole frame; None if it is not all there, -1 if `next` will refuse it."""
        start, available = self._start, self._end - self._start - _PREFIX
        if available < 0:
            return None
        (length,) = _LENGTH.unpack_from(self._view, start)
        if length < 2 or length > self._max:
            return -1
        return None if available < length else int(_KEY.unpack_from(self._view, start + _PREFIX)[0])

    def missing(self) -> int:
        """Storage that the frame begun needs; as much as is left if whole frames wait. 0 if it is there."""
        left = self._end - self._start
        if left < _PREFIX:  # noqa: SIM108
            size = _PREFIX
        else:
            size = max(left, _PREFIX + int(_LENGTH.unpack_from(self._view, self._start)[0]))
        return 0 if self._own is not None and self._start == 0 and self._size == size else size

    def keep(self, size: int) -> None:
        """Move the remaining bytes to the connection's own storage, to be filled up to `size`."""
        self._size = size
        self._move(min(size, max(self.left * 2, _FIRST_BYTES_MAX)))

    def park(self) -> bool:
        """Move the remaining bytes out of the shared buffer; False if they are in the connection's own storage
        already."""
        if self._own is not None:
            return False
        self.keep(self.left)
        return True

    def drop(self) -> None:
        """Nothing is left: back to the shared buffer."""
        if self._own is not None:
            self._give_back()
        self._view = self._shared
        self._start = self._end = self._size = 0

    def _move(self, capacity: int) -> None:
        storage = self._memory.take(capacity)
        view = memoryview(storage)
        view = view[: min(len(view), self._size)]
        left = self._end - self._start
        view[:left] = self._view[self._start : self._end]
        if self._own is not None:
            self._give_back()
        self._own, self._view = storage, view
        self._start, self._end = 0, left

    def _give_back(self) -> None:
        if self._own is not None:
            self._memory.give(self._own)
            self._own = None
