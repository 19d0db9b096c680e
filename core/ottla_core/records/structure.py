"""Checks that the bytes after a batch header are exactly the records that it declares. [P]

A leader checks everything that clients send, because one unreadable batch stops every reader of its
partition. It accepts only what Java, librdkafka and aiokafka all read in the same way: numbers of at most five
bytes (ten for timestamps), lengths of -1 or more, no record attributes, header names that are UTF-8, offset deltas
0, 1, 2, …, every record as long as it declares, and nothing after the last one.

Plain loops over integers, with no object per record; over copied windows, because `bytes` are read twice as fast as a
memoryview. aiokafka's compiled reader is no substitute: it accepts multi-byte attributes and numbers of more than
five bytes, which Java refuses. No native code but ours sees these bytes before they are checked (decision 0005).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla_core.errors import InvalidRecord
from ottla_core.ports.disk import Buffer
from ottla_core.records.codec import RECORD_BYTES_MIN

if TYPE_CHECKING:
    from mypy_extensions import i64

#: Records or headers checked before a yield to the event loop: a little over a millisecond in plain Python.
RECORDS_PER_TURN: Final = 2_000
#: The same for the compiled check, at 20 to 60 ns each: above the 10,000 records that librdkafka puts into a batch, and
#: half a millisecond, because a request may bring such batches for several partitions.
RECORDS_PER_TURN_COMPILED: Final = 12_000
#: Records that an error response lists; more would not help the client.
NAMED_MAX: Final = 1_000

#: Bytes copied at a time: what stays in the processor's cache, and comes from the heap without a system call.
_WINDOW_BYTES: Final = 32_768
#: Bytes behind a window that are copied, too: enough for the length of a record that begins there.
_BEHIND_BYTES: Final = 8

_INT_BYTES_MAX: Final = 5
_LONG_BYTES_MAX: Final = 10
_LONG_MAX: Final = (1 << 63) - 1
_TOO_LONG: Final = "A number in the records of the batch is longer than any client reads."


class Found(NamedTuple):
    """Findings about valid records."""

    #: Indexes of records without a key, if requested; the first `NAMED_MAX`.
    keyless: list[int]
    #: Indexes and timestamp deltas of records outside of the given range; the first `NAMED_MAX`.
    untimely: list[tuple[int, int]]
    #: Greatest timestamp, relative to the base timestamp.
    newest_delta: int


def check_records(
    data: Buffer,
    count: int,
    *,
    needs_keys: bool = False,
    least_delta: int = -_LONG_MAX,
    most_delta: int = _LONG_MAX,
    per_turn: int = RECORDS_PER_TURN,
) -> Generator[None, None, Found]:
    """Check that `data` is `count` records and nothing else; `InvalidRecord` if not.

    Yields after `per_turn` records or headers; resume at any time. Records without a key and with timestamp
    deltas outside of the range do not stop the check: they are returned.
    """
    end = len(data)
    if not 0 < count <= end // RECORD_BYTES_MIN:
        raise InvalidRecord(f"The batch declares {count} records; its {end} bytes cannot hold them.")
    least_delta, most_delta = max(least_delta, -_LONG_MAX), min(most_delta, _LONG_MAX)
    walk = _Walk(memoryview(data), count, needs_keys, least_delta, most_delta, per_turn)
    try:
        while walk.advance():
            yield
    except IndexError:
        raise InvalidRecord("The last records of the batch are cut off.") from None
    left = end - walk.base - walk.at
    if left:
        raise InvalidRecord(f"{left} bytes follow the last of the {count} records that the batch declares.")
    return Found(walk.keyless, walk.untimely, walk.newest)


class _Walk:
    """From record to record, a turn at a time. `IndexError` where the bytes end early."""

    __slots__ = (
        "at", "base", "count", "data", "end", "headers_left", "index", "keyless", "least_delta", "most_delta",
        "needs_keys", "newest", "per_turn", "stop", "untimely", "view",
    )  # fmt: skip

    def __init__(
        self, view: memoryview, count: i64, needs_keys: bool, least_delta: i64, most_delta: i64, per_turn: i64
    ) -> None:
        self.view = view
        self.per_turn: i64 = per_turn
        self.count: i64 = count
        self.needs_keys = needs_keys
        self.least_delta: i64 = least_delta
        self.most_delta: i64 = most_delta
        self.keyless: list[int] = []
        self.untimely: list[tuple[int, int]] = []
        self.newest: i64 = -_LONG_MAX
        #: The next record.
        self.index: i64 = 0
        #: Where the record before that ends, and how many of its headers are not checked yet.
        self.stop: i64 = 0
        self.headers_left: i64 = 0
        self._copy(0, _WINDOW_BYTES)

    def _copy(self, base: i64, size: i64) -> None:
        """Make a window that begins at byte `base` of the records. Records are checked within one window."""
        self.base: i64 = base
        self.data = bytes(self.view[base : base + size + _BEHIND_BYTES])
        self.end: i64 = min(size, len(self.data))
        #: The next byte of the window.
        self.at: i64 = 0

    def advance(self) -> bool:
        """Check the next `per_turn` records or headers; returns whether any are left.

        Nearly all records have small numbers and no headers, and are checked inline: a call per number would
        double the cost. `_begin` checks every other record, from its start.
        """
        room: i64 = self.per_turn
        if self.headers_left:
            room = self._check_headers(room)
            if self.headers_left:
                return True
        data, at, end = self.data, self.at, self.end
        newest, needs_keys, least_delta, most_delta = (
            self.newest, self.needs_keys, self.least_delta, self.most_delta,
        )  # fmt: skip
        last: i64 = min(self.index + self.per_turn, self.count)
        for index in range(self.index, last):
            begins: i64 = at
            number: i64 = data[at]
            at += 1
            if number >= 0x80:
                number += (data[at] << 7) - 0x80
                at += 1
            stop: i64 = at + (number >> 1)
            if number < 0x4000 and not (number & 1 or data[at] or stop > end):
                delta: i64 = data[at + 1]  # of the timestamp
                at += 2
                if delta >= 0x80:
                    delta += (data[at] << 7) - 0x80
                    at += 1
                number = data[at]  # the offset delta
                at += 1
                if number >= 0x80:
                    number += (data[at] << 7) - 0x80
                    at += 1
                key: i64 = data[at]
                if number == index + index and delta < 0x4000 and key < 0x80 and (key == 1 or not key & 1):
                    at += 1 + (key >> 1)
                    number = data[at]  # the length of the value
                    at += 1
                    if number >= 0x80:
                        number += (data[at] << 7) - 0x80
                        at += 1
                    if number < 0x4000 and not number & 1:
                        at += number >> 1
                        if at + 1 == stop and not data[at]:
                            at = stop
                            delta = (delta >> 1) ^ -(delta & 1)
                            if delta > newest:
                                newest = delta
                            if not least_delta <= delta <= most_delta or (needs_keys and key == 1):
                                self._note(index, delta, key == 1)
                            continue
            self.at = begins
            self._begin(index)
            room = self._check_headers(room)
            data, at, end, newest = self.data, self.at, self.end, max(newest, self.newest)
            if not room:
                last = index + 1
                break
        self.at, self.index, self.newest = at, last, newest
        return self.headers_left > 0 or last < self.count

    def _begin(self, index: i64) -> None:
        """Check one record up to its headers, number by number."""
        data = self.data
        number, at = _number(data, self.at)
        size: i64 = number >> 1
        left: i64 = len(self.view) - self.base - at
        if number & 1 or size > left:
            raise _bad(index, f"declares {_signed(number)} bytes, {left} are left")
        if at + size > self.end:
            at -= self.at
            self._copy(self.base + self.at, max(at + size, _WINDOW_BYTES))
            data = self.data
        self.stop = stop = at + size
        if data[at]:
            raise _bad(index, f"has attributes {data[at]:#x}; none are defined")
        delta, at = _long(data, at + 1)
        number, at = _number(data, at)
        if number != index + index:
            raise _bad(index, f"has offset delta {_signed(number)}")
        key, at = _number(data, at)
        if key & 1 and key != 1:
            raise _bad(index, f"has a key of {_signed(key)} bytes")
        number, at = _number(data, at + (key >> 1))
        if number & 1 and number != 1:
            raise _bad(index, f"has a value of {_signed(number)} bytes")
        number, at = _number(data, at + (number >> 1))
        if number & 1 or number > stop - at:
            raise _bad(index, f"declares {_signed(number)} headers")
        self.at, self.index, self.headers_left = at, index + 1, number >> 1
        self.newest = max(self.newest, delta)
        self._note(index, delta, key == 1)

    def _note(self, index: i64, delta: i64, is_keyless: bool) -> None:
        if not self.least_delta <= delta <= self.most_delta and len(self.untimely) < NAMED_MAX:
            self.untimely.append((index, delta))
        if is_keyless and self.needs_keys and len(self.keyless) < NAMED_MAX:
            self.keyless.append(index)

    def _check_headers(self, room: i64) -> i64:
        """Check up to `room` headers of the record that has begun; returns what is left of `room`."""
        data, at, stop = self.data, self.at, self.stop
        now: i64 = min(self.headers_left, room)
        index: i64 = self.index - 1
        for _ in range(now):
            at = _header(data, at, stop, index)
        self.at = at
        self.headers_left -= now
        if not self.headers_left and at != stop:
            raise _bad(index, f"ends {max(stop - at, at - stop)} bytes {'early' if at < stop else 'late'}")
        return room - now


def _header(data: bytes, at: i64, stop: i64, index: i64) -> i64:
    """Check one header; returns where it ends."""
    number, at = _number(data, at)
    if number & 1 or number >> 1 > stop - at:
        raise _bad(index, f"has a header name of {_signed(number)} bytes")
    try:
        data[at : at + (number >> 1)].decode()
    except UnicodeDecodeError:
        raise _bad(index, "has a header name that is not UTF-8") from None
    number, at = _number(data, at + (number >> 1))
    if number == 1:
        return at
    if number & 1:
        raise _bad(index, f"has a header value of {_signed(number)} bytes")
    return at + (number >> 1)


def _number(data: bytes, at: i64) -> tuple[i64, i64]:
    """The unsigned number of up to 32 bits that a zigzag varint holds, and where it ends."""
    value: i64 = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    shift: i64 = 7
    for position in range(at + 1, at + _INT_BYTES_MAX):
        byte: i64 = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Clients differ in how they read numbers beyond 32 bits.
            if value >> 32:
                break
            return value, position + 1
        shift += 7
    raise InvalidRecord(_TOO_LONG)


def _long(data: bytes, at: i64) -> tuple[int, i64]:
    """The signed number of up to 64 bits that a zigzag varint holds, and where it ends."""
    value: int = 0
    shift: int = 0
    for position in range(at, at + _LONG_BYTES_MAX):
        byte: int = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return _signed(value), position + 1
        shift += 7
    raise InvalidRecord(_TOO_LONG)


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _bad(index: i64, what: str) -> InvalidRecord:
    return InvalidRecord(f"Record {index} of the batch {what}.")
