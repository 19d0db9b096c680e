"""Fetch on the wire: a bounded parse, and an encoder that never copies record bytes. [P]"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from ottla_broker.edge.kafka.decode import Cursor, Malformed
from ottla_broker.edge.kafka.encode import uvarint
from ottla_broker.requests import Aborted, Fetched
from ottla_broker.steps import PARTITIONS_PER_STEP, Slice, exhaust
from ottla_core.ports.disk import Buffer

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
SESSIONS_FROM = 7
RACKS_FROM = 11

_INT16 = Struct(">h")
_INT32 = Struct(">i")
#: Records up to this size are joined with what surrounds them: fewer buffers, and the copy is small.
_JOIN_BYTES_MAX = 1 << 12
#: To encode a partition costs a microsecond or two.
_ENCODED_PER_STEP = 8 * PARTITIONS_PER_STEP
#: To parse one, half a microsecond.
_PARSED_PER_STEP = 500
#: Below this a request has too few topics and partitions for a second slice: an empty topic has three bytes. So it is
#: parsed before another connection's bytes come into the shared receive buffer.
LONG_BODY_BYTES = 1 << 10


class FetchPartition(NamedTuple):
    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int


class FetchTopic(NamedTuple):
    #: The topic's name, or its id from version 13 on, as it stood in the request.
    key: bytes
    partitions: list[FetchPartition]


class FetchRequest(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    #: Topic and partition indexes that an incremental fetch no longer wants.
    forgotten: list[tuple[bytes, list[int]]]
    #: The consumer's rack, perhaps empty; None before version 11, whose clients read from leaders only.
    rack: str | None = None


#: By first version: wait, min bytes, max bytes, isolation [, session id, session epoch].
_LIMITS_V4 = Struct(">iiib")
_LIMITS_V7 = Struct(">iiibii")
#: By first version: index [, leader epoch], offset [, last fetched epoch] [, log start offset], max bytes.
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")


def parse(body: memoryview, version: int) -> FetchRequest:
    """Raises `Malformed`. Everything is copied out of `body`."""
    return exhaust(parse_in_steps(body, version))


def parse_in_steps(body: memoryview, version: int) -> Generator[None, None, FetchRequest]:
    """The same in slices. `body` must stay as it is until the end if it is longer than `LONG_BODY_BYTES`."""
    try:
        return (yield from _parse(Cursor(body), version))
    except (struct_error, IndexError) as error:
        raise Malformed(f"fetch: {error}") from error


def _parse(cursor: Cursor, version: int) -> Generator[None, None, FetchRequest]:
    view = cursor.view
    if version < 15:
        cursor.at += 4  # replica id: every reader counts as a consumer, below the high watermark
    session_id, session_epoch = 0, -1
    if version >= SESSIONS_FROM:
        wait, low, high, isolation, session_id, session_epoch = _LIMITS_V7.unpack_from(view, cursor.at)
        cursor.at += _LIMITS_V7.size
    else:
        wait, low, high, isolation = _LIMITS_V4.unpack_from(view, cursor.at)
        cursor.at += _LIMITS_V4.size
    flexible = version >= FLEXIBLE_FROM
    topics: list[FetchTopic] = []
    part = Slice(_PARSED_PER_STEP)
    for _ in range(_count(cursor, flexible)):
        key = _topic_key(cursor, version)
        left, partitions = _count(cursor, flexible), list[FetchPartition]()
        while left > 0:
            several = min(left, _PARSED_PER_STEP)
            partitions += [_partition(cursor, version) for _ in range(several)]
            left -= several
            if part.over(several):
                yield
        if flexible:
            cursor.skip_tagged()
        topics.append(FetchTopic(key, partitions))
        if part.over():
            yield
    forgotten = _forgotten(cursor, version) if version >= SESSIONS_FROM else []
    rack = _rack(cursor, flexible) if version >= RACKS_FROM else None
    # The tagged fields that follow are not used; nothing comes after them.
    return FetchRequest(wait, low, high, isolation == 1, session_id, session_epoch, topics, forgotten, rack)


def _rack(cursor: Cursor, flexible: bool) -> str:
    if flexible:
        length = cursor.uvarint() - 1
    else:
        (length,) = _INT16.unpack_from(cursor.view, cursor.at)
        cursor.at += 2
    if length <= 0:
        return ""
    try:
        return bytes(cursor.take(length)).decode()
    except UnicodeDecodeError as error:
        raise Malformed("fetch: the rack is not UTF-8") from error


def _count(cursor: Cursor, flexible: bool) -> int:
    if flexible:
        number = cursor.uvarint() - 1
    else:
        (number,) = _INT32.unpack_from(cursor.view, cursor.at)
        cursor.at += 4
    return cursor.count(number)


def _topic_key(cursor: Cursor, version: int) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return bytes(cursor.take(16))
    if version >= FLEXIBLE_FROM:
        return bytes(cursor.take(cursor.uvarint() - 1))
    (length,) = _INT16.unpack_from(cursor.view, cursor.at)
    cursor.at += 2
    return bytes(cursor.take(length))


def _partition(cursor: Cursor, version: int) -> FetchPartition:
    view, at = cursor.view, cursor.at
    epoch = -1
    if version >= 12:
        index, epoch, offset, _, _, size = _PARTITION_V12.unpack_from(view, at)
        cursor.at = at + _PARTITION_V12.size
        cursor.skip_tagged()
    elif version >= 9:
        index, epoch, offset, _, size = _PARTITION_V9.unpack_from(view, at)
        cursor.at = at + _PARTITION_V9.size
    elif version >= 5:
        index, offset, _, size = _PARTITION_V5.unpack_from(view, at)
        cursor.at = at + _PARTITION_V5.size
    else:
        index, offset, size = _PARTITION_V4.unpack_from(view, at)
        cursor.at = at + _PARTITION_V4.size
    return FetchPartition(index, epoch, offset, size)


def _forgotten(cursor: Cursor, version: int) -> list[tuple[bytes, list[int]]]:
    flexible = version >= FLEXIBLE_FROM
    topics: list[tuple[bytes, list[int]]] = []
    for _ in range(_count(cursor, flexible)):
        key = _topic_key(cursor, version)
        number = _count(cursor, flexible)
        indexes = list(Struct(f">{number}i").unpack(cursor.take(4 * number)))
        if flexible:
            cursor.skip_tagged()
        topics.append((key, indexes))
    return topics


#: index, error, high watermark, last stable offset [, log start offset].
_HEAD_V4 = Struct(">ihqq")
_HEAD_V5 = Struct(">ihqqq")
_ABORTED = Struct(">qq")

Answers = Sequence[tuple[bytes, Sequence[tuple[int, Fetched]]]]


def encode(
    version: int, answers: Answers, *, read_committed: bool, session_id: int = 0, error_code: int = 0
) -> list[Buffer]:
    """The answer as buffers to be sent in order; records are passed through as they are."""
    return exhaust(
        encode_in_steps(
            version, answers, read_committed=read_committed, session_id=session_id, error_code=error_code
        )
    )


def encode_in_steps(
    version: int, answers: Answers, *, read_committed: bool, session_id: int = 0, error_code: int = 0
) -> Generator[None, None, list[Buffer]]:
    """The same in slices.

    `answers` holds per topic, by the key of the request, the partition indexes and what was fetched.
    """
    flexible = version >= FLEXIBLE_FROM
    done: list[Buffer] = []
    out = bytearray(4)  # never throttled
    if version >= SESSIONS_FROM:
        out += _INT16.pack(error_code) + _INT32.pack(session_id)
    out += uvarint(len(answers) + 1) if flexible else _INT32.pack(len(answers))
    for key, partitions in answers:
        if version < FLEXIBLE_FROM:
            out += _INT16.pack(len(key))
        elif version < TOPIC_IDS_FROM:
            out += uvarint(len(key) + 1)
        out += key
        out += uvarint(len(partitions) + 1) if flexible else _INT32.pack(len(partitions))
        for number, (index, fetched) in enumerate(partitions, 1):
            if number % _ENCODED_PER_STEP == 0:
                yield
            _encode_head(out, version, index, fetched, read_committed)
            records = fetched.records
            out += uvarint(len(records) + 1) if flexible else _INT32.pack(len(records))
            if len(records) <= _JOIN_BYTES_MAX:
                out += records
            else:
                done += (out, records)
                out = bytearray()
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        done.append(out)
    return done


def _encode_head(out: bytearray, version: int, index: int, f: Fetched, read_committed: bool) -> None:
    code = 0 if f.error is None else f.error.code
    if version >= 5:
        out += _HEAD_V5.pack(index, code, f.high_watermark, f.last_stable_offset, f.log_start_offset)
    else:
        out += _HEAD_V4.pack(index, code, f.high_watermark, f.last_stable_offset)
    if read_committed:
        _encode_aborted(out, version, f.aborted)
    else:
        out += b"\x00" if version >= FLEXIBLE_FROM else b"\xff\xff\xff\xff"  # null
    if version >= RACKS_FROM:
        out += _INT32.pack(f.preferred_replica)


def _encode_aborted(out: bytearray, version: int, aborted: Iterable[Aborted]) -> None:
    entries = list(aborted)
    flexible = version >= FLEXIBLE_FROM
    out += uvarint(len(entries) + 1) if flexible else _INT32.pack(len(entries))
    for entry in entries:
        out += _ABORTED.pack(entry.producer_id, entry.first_offset)
        if flexible:
            out.append(0)
