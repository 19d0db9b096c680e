"""Deserializers that check sizes and counts before they parse. [P]

A protobuf sub-message can be two bytes on the wire and a hundred in memory, so a 32 MiB request of nothing
but empty entries would become gigabytes inside the native parser. These wrappers bound the size of a
request per method, and the number of its top-level fields, before the parser sees a byte. Called by gRPC
for every message; what they refuse ends that call and nothing else.

A message that is refused, or that the parser refuses, is given on as the error itself: what a deserializer raises,
gRPC would report it to the peer as UNKNOWN, with the name of a class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError

from ottla_core.errors import InvalidRequest, RequestError

T = TypeVar("T")

#: Below this, even a message of nothing but empty entries stays under 3 MB in memory; not worth a walk.
WALK_ABOVE_BYTES = 64 * 1024

_VARINT_BYTES_MAX = 10


def bounded(
    parse: Callable[[bytes], T], *, bytes_max: int, entries_max: int
) -> Callable[[bytes], T | RequestError]:
    """`parse`, but only for messages of at most `bytes_max` bytes and `entries_max` top-level fields."""

    def parse_bounded(data: bytes) -> T | RequestError:
        try:
            if len(data) > bytes_max:
                return InvalidRequest(
                    f"The request has {len(data)} bytes; this method takes at most {bytes_max}."
                )
            if len(data) > WALK_ABOVE_BYTES:
                check_fields(data, entries_max)
            return parse(data)
        except RequestError as refused:
            return refused
        except DecodeError:
            return InvalidRequest("The request is not the protobuf message of this method.")

    return parse_bounded


def check_fields(data: bytes, entries_max: int) -> None:
    """Refuse a message with more than `entries_max` top-level fields; never reads more than that many."""
    position, end = 0, len(data)
    for _ in range(entries_max):
        if position >= end:
            return
        position = _skip_field(data, position)
    if position < end:
        raise InvalidRequest(f"The request has more than {entries_max} entries; split it.")


def _skip_field(data: bytes, position: int) -> int:
    tag, position = _varint(data, position)
    wire_type = tag & 7
    if wire_type == 0:
        return _varint(data, position)[1]
    if wire_type == 1:
        return position + 8
    if wire_type == 2:
        length, position = _varint(data, position)
        return position + length
    if wire_type == 5:
        return position + 4
    # Groups were dropped from proto3; no client of this protocol sends one.
    raise InvalidRequest(f"Wire type {wire_type} is not used in this protocol.")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[position : position + _VARINT_BYTES_MAX]:
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise InvalidRequest("The request ends in the middle of a number.")
