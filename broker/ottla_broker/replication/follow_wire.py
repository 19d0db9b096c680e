"""Codec of the frames of the Follow stream. Documented in `replication.proto`. [P]

Every frame begins with the incarnations of its sender and its receiver; every entry names topic id,
partition and leader epoch (rule 9). Batches have the same bytes as on disk and are never copied: decoding yields
views of the frame, encoding is one join.

A frame that contradicts its own counts and lengths is a `WireError`, which ends the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from ottla_core.ports.disk import Buffer

VERSION = 1
#: Topic id and partition: the key of a partition in a frame, and in the tables of both ends.
KEY_BYTES = 20

_HEADER = struct.Struct(">BBxxI16s16s")
_HELLO = struct.Struct(">ii")
_POSITION = struct.Struct(">20sBxxxiiqq")
_SECTION = struct.Struct(">20sB??xiiqqqI")
_INDEX = struct.Struct(">I")

HEADER_BYTES = _HEADER.size
SECTION_BYTES = _SECTION.size


class WireError(ValueError):
    """The bytes are not a frame of this protocol."""


class Kind(IntEnum):
    #: Follower to leader, first on a stream: the ids of both.
    HELLO = 1
    #: Follower to leader; without entries a heartbeat.
    POSITIONS = 2
    #: Leader to follower; without sections a heartbeat.
    BATCHES = 3


class PositionKind(IntEnum):
    """Kind of an entry of POSITIONS."""

    #: The follower's position.
    HAVE = 0
    #: The follower's position; the leader shall send from there.
    WANT = 1
    #: The follower no longer follows the partition.
    LEAVE = 2
    #: The follower's log start, in place of its position; only sent to leaders that ask for it.
    START = 3


class SectionKind(IntEnum):
    """Kind of a section of BATCHES."""

    #: Batches from `offset` on, or none and only the marks.
    BATCHES = 0
    #: The follower's log diverges: `epoch` ends at `offset` on the leader.
    DIVERGED = 1
    #: The leader's log starts at `offset`.
    START = 2


class Header(NamedTuple):
    kind: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed
    sender: bytes
    receiver: bytes


class Hello(NamedTuple):
    follower: int
    leader: int


class PositionEntry(NamedTuple):
    key: bytes
    says: int
    leader_epoch: int
    last_epoch: int
    end_offset: int
    position: int


class Section(NamedTuple):
    key: bytes
    tells: int
    leader_epoch: int
    epoch: int
    offset: int
    high_watermark: int
    log_start: int
    records: Buffer
    #: The follower shall report its log start. The flag is a byte that was padding: older followers ignore it.
    asks_start: bool = False
    #: The replica catches up and may be throttled: its report may be late. Also a byte that was padding.
    is_throttled: bool = False


def partition_key(topic_id: UUID, index: int) -> bytes:
    return topic_id.bytes + _INDEX.pack(index)


def partition_of(key: bytes) -> tuple[UUID, int]:
    return UUID(bytes=key[:16]), int.from_bytes(key[16:])


# ---------------------------------------------------------------------- writing


def encode_hello(sender: bytes, receiver: bytes, follower: int, leader: int) -> bytes:
    return _HEADER.pack(VERSION, Kind.HELLO, 0, sender, receiver) + _HELLO.pack(follower, leader)


def encode_positions(sender: bytes, receiver: bytes, entries: Sequence[PositionEntry]) -> bytes:
    made = [_HEADER.pack(VERSION, Kind.POSITIONS, len(entries), sender, receiver)]
    made += [_POSITION.pack(*entry) for entry in entries]
    return b"".join(made)


def encode_section_header(section: Section, size: int) -> bytes:
    key, tells, leader_epoch, epoch, offset, high_watermark, log_start, _, asks, throttled = section
    return _SECTION.pack(
        key, tells, asks, throttled, leader_epoch, epoch, offset, high_watermark, log_start, size
    )


def encode_batches(sender: bytes, receiver: bytes, count: int, parts: Iterable[Buffer]) -> bytes:
    """`parts` are section headers, each followed by its records if it has any."""
    return b"".join((_HEADER.pack(VERSION, Kind.BATCHES, count, sender, receiver), *parts))


# ---------------------------------------------------------------------- reading


def decode_header(frame: Buffer) -> Header:
    if len(frame) < HEADER_BYTES:
        raise WireError(f"{len(frame)} bytes are too few for a frame of the Follow stream.")
    version, kind, count, sender, receiver = _HEADER.unpack_from(frame)
    if version != VERSION:
        raise WireError(
            f"The frame has version {version} of the Follow stream, and this broker speaks {VERSION}."
        )
    return Header(kind, count, sender, receiver)


def decode_hello(frame: Buffer) -> Hello:
    if len(frame) != HEADER_BYTES + _HELLO.size:
        raise WireError(f"{len(frame)} bytes are not a greeting.")
    return Hello(*_HELLO.unpack_from(frame, HEADER_BYTES))


def decode_positions(frame: Buffer, count: int) -> list[PositionEntry]:
    if len(frame) != HEADER_BYTES + count * _POSITION.size:
        raise WireError(f"{count} positions do not fit {len(frame)} bytes.")
    return [PositionEntry._make(fields) for fields in _POSITION.iter_unpack(memoryview(frame)[HEADER_BYTES:])]


def decode_batches(frame: Buffer, count: int) -> list[Section]:
    if count * SECTION_BYTES > len(frame) - HEADER_BYTES:
        raise WireError(f"{count} sections do not fit {len(frame)} bytes.")
    view = memoryview(frame)
    sections: list[Section] = []
    at, end = HEADER_BYTES, len(frame)
    for _ in range(count):
        if end - at < SECTION_BYTES:
            raise WireError(f"A section of {count} is cut off.")
        key, tells, asks, slow, leader_epoch, epoch, offset, mark, log_start, size = _SECTION.unpack_from(
            frame, at
        )
        at += SECTION_BYTES
        if size > end - at:
            raise WireError(f"A section claims {size} bytes, but only {end - at} are left.")
        sections.append(
            Section(
                key, tells, leader_epoch, epoch, offset, mark, log_start, view[at : at + size], asks, slow
            )
        )
        at += size
    if at != end:
        raise WireError(f"{end - at} bytes are left behind the last section.")
    return sections
