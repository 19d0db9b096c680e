"""Checks that the bytes after a batch header are exactly the records that it declares. [P]

A leader checks everything that clients send, because one unreadable batch stops every reader of its
partition. It accepts only what Java, librdkafka and aiokafka all read in the same way: numbers of at most five
bytes (ten for timestamps), lengths of -1 or more, no record attributes, header names that are UTF-8, offset deltas
0, 1, 2, …, every record as long as it declares, and nothing after the last one.

Plain Python over integers, with no object per record; over a copy, because `bytes` are read twice as fast as a
memoryview. aiokafka's compiled reader takes a fifth of the time, but it accepts multi-byte attributes and numbers of
more than five bytes, which Java refuses. No native code sees these bytes before they are checked (decision
0005).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from ottla_core.errors import InvalidRecord
from ottla_core.ports.disk import Buffer
from ottla_core.records.codec import RECORD_BYTES_MIN

#: Records or headers checked before a yield to the event loop: a little over a millisecond.
RECORDS_PER_TURN = 2_000
#: Records that an error response lists; more would not help the client.
NAMED_MAX = 1_000

_INT_BYTES_MAX = 5
_LONG_BYTES_MAX = 10
_LONG_MAX = (1 << 63) - 1


class Found(NamedTuple):
    """Findings about valid records."""

    #: Indexes of records without a key, if requested; the first `NAMED_MAX`.
    keyless: list[int]
    #: Indexes and timestamp deltas of records outside of the given range; the first `NAMED_MAX`.
    untimely: list[tuple[int, int]]
    #: Greatest timestamp, relative to the base timestamp.
    newest_delta: int = -_LONG_MAX


def check_records(
    data: Buffer,
    count: int,
    *,
    needs_keys: bool = False,
    least_delta: int = -_LONG_MAX,
    most_delta: int = _LONG_MAX,
) -> Generator[None, None, Found]:
    """Check that `data` is `count` records and nothing else; `InvalidRecord` if not.

    Yields after `RECORDS_PER_TURN` records or headers; resume at any time. Records without a key and with timestamp
    deltas outside of the range do not stop the check: they are returned.
    """
    end = len(data)
    if not 0 < count <= end // RECORD_BYTES_MIN:
        raise InvalidRecord(f"The batch declares {count} records; its {end} bytes cannot hold them.")
    found = Found([], [])
    try:
        at, newest = yield from _walk(bytes(data), count, found, needs_keys, least_delta, most_delta)
    except IndexError:
        raise InvalidRecord("The last records of the batch are cut off.") from None
    if at != end:
        raise InvalidRecord(
            f"{end - at} bytes follow the last of the {count} records that the batch declares."
        )
    return found._replace(newest_delta=newest)


def _walk(
    data: bytes, count: int, found: Found, needs_keys: bool, least_delta: int, most_delta: int
) -> Generator[None, None, tuple[int, int]]:
    """Returns where the records end, and the greatest timestamp delta.

    Nearly all records have small numbers and no headers, and are checked inline: a call per number would
    double the cost. `_record` checks every other record, from its start.
    """
    end, newest = len(data), -_LONG_MAX
    at = headers = 0
    for index in range(count):
        if index % RECORDS_PER_TURN == 0 and index:
            yield
        begins, number = at, data[at]
        at += 1
        if number >= 0x80:
            number += (data[at] << 7) - 0x80
            at += 1
        stop = at + (number >> 1)
        if number < 0x4000 and not (number & 1 or data[at] or stop > end):
            delta = data[at + 1]  # of the timestamp
            at += 2
            if delta >= 0x80:
                delta += (data[at] << 7) - 0x80
                at += 1
            number = data[at]  # the offset delta
            at += 1
            if number >= 0x80:
                number += (data[at] << 7) - 0x80
                at += 1
            key = data[at]
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
                        if not least_delta <= delta <= most_delta and len(found.untimely) < NAMED_MAX:
                            found.untimely.append((index, delta))
                        if needs_keys and key == 1 and len(found.keyless) < NAMED_MAX:
                            found.keyless.append(index)
                        continue
        at, stop, delta, left, is_keyless = _record(data, begins, index)
        newest = max(newest, delta)
        if not least_delta <= delta <= most_delta and len(found.untimely) < NAMED_MAX:
            found.untimely.append((index, delta))
        if needs_keys and is_keyless and len(found.keyless) < NAMED_MAX:
            found.keyless.append(index)
        for _ in range(left):
            at = _header(data, at, stop, index)
            headers += 1
            if headers == RECORDS_PER_TURN:
                headers = 0
                yield
        if at != stop:
            raise _bad(index, f"ends {abs(stop - at)} bytes {'early' if at < stop else 'late'}")
    return at, newest


class _Begun(NamedTuple):
    """A record up to its headers: where they begin, where the record must end, and its findings."""

    at: int
    stop: int
    timestamp_delta: int
    headers: int
    is_keyless: bool


def _record(data: bytes, at: int, index: int) -> _Begun:
    """Check one record up to its headers, number by number."""
    end = len(data)
    number, at = _number(data, at, _INT_BYTES_MAX)
    stop = at + (number >> 1)
    if number & 1 or stop > end:
        raise _bad(index, f"declares {_signed(number)} bytes, {end - at} are left")
    if data[at]:
        raise _bad(index, f"has attributes {data[at]:#x}; none are defined")
    delta, at = _number(data, at + 1, _LONG_BYTES_MAX)
    number, at = _number(data, at, _INT_BYTES_MAX)
    if number != index + index:
        raise _bad(index, f"has offset delta {_signed(number)}")
    key, at = _number(data, at, _INT_BYTES_MAX)
    if key & 1 and key != 1:
        raise _bad(index, f"has a key of {_signed(key)} bytes")
    number, at = _number(data, at + (key >> 1), _INT_BYTES_MAX)
    if number & 1 and number != 1:
        raise _bad(index, f"has a value of {_signed(number)} bytes")
    number, at = _number(data, at + (number >> 1), _INT_BYTES_MAX)
    if number & 1 or number > stop - at:
        raise _bad(index, f"declares {_signed(number)} headers")
    return _Begun(at, stop, _signed(delta), number >> 1, key == 1)


def _header(data: bytes, at: int, stop: int, index: int) -> int:
    """Check one header; returns where it ends."""
    number, at = _number(data, at, _INT_BYTES_MAX)
    if number & 1 or number >> 1 > stop - at:
        raise _bad(index, f"has a header name of {_signed(number)} bytes")
    try:
        str(data[at : at + (number >> 1)], "utf-8")
    except UnicodeDecodeError:
        raise _bad(index, "has a header name that is not UTF-8") from None
    number, at = _number(data, at + (number >> 1), _INT_BYTES_MAX)
    if number == 1:
        return at
    if number & 1:
        raise _bad(index, f"has a header value of {_signed(number)} bytes")
    return at + (number >> 1)


def _number(data: bytes, at: int, most_bytes: int) -> tuple[int, int]:
    """The unsigned number that a zigzag varint holds, and where it ends."""
    value = shift = 0
    for position in range(at, at + most_bytes):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Clients differ in how they read numbers beyond 32 or 64 bits.
            if value >> (32 if most_bytes == _INT_BYTES_MAX else 64):
                break
            return value, position + 1
        shift += 7
    raise InvalidRecord(f"A number at byte {at} of the records is longer than any client reads.")


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _bad(index: int, what: str) -> InvalidRecord:
    return InvalidRecord(f"Record {index} of the batch {what}.")
