"""ListOffsets (2), versions 1-11: the offset for a time, and the special ones. [S]

Special times: -1 latest, -2 earliest, -3 the record with the greatest timestamp, -4 earliest on local disk
(the same as -2, all disks are local), -5 last tiered and -6 first to be tiered (offset -1: nothing is
tiered).

Versions: 2 adds the isolation level; 4 leader epochs; 6 is flexible; 7, 8, 9 and 11 add the special times
-3, -4, -5 and -6; 10 a timeout. Left out: the timeout (searching is local and short) and the replica id (it
is ignored).
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from struct import Struct
from typing import Any

from ottla_broker.edge.kafka.encode import uvarint
from ottla_broker.edge.kafka.request import Context, Encoded, Reply, Request, Steps
from ottla_broker.requests import EARLIEST_TIMESTAMP, FoundOffset, Maybe
from ottla_broker.steps import PARTITIONS_PER_STEP, Slice, begun
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

_EARLIEST_LOCAL = -4
#: The last that is tiered, and the first to be tiered.
_TIERED = (-5, -6)
_NOTHING = FoundOffset(-1, -1, -1)

#: One look costs some three microseconds.
_PARTITIONS_PER_STEP = 4 * PARTITIONS_PER_STEP
#: Encoding one costs a fraction of a microsecond.
_ENCODED_PER_STEP = 1000
_FLEXIBLE_FROM = 6

_INT16 = Struct(">h")
_INT32 = Struct(">i")
#: By first version: index, error, timestamp, offset [, leader epoch [, no tagged fields]].
_PARTITION_V1 = Struct(">ihqq")
_PARTITION_V4 = Struct(">ihqqi")
_PARTITION_V6 = Struct(">ihqqib")

#: Partition index, error code, what was found.
Answer = tuple[int, int, FoundOffset]
#: The answers of a topic, a place among them, and what to await for it.
Open = tuple[list[Answer], int, Awaitable[FoundOffset]]
#: A topic's name, and the answers of its partitions.
Answers = list[tuple[str, list[Answer]]]


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_look(context, request))


def _look(context: Context, request: Request) -> Steps:
    version, fields = request.version, (yield from request.fields_in_steps())
    read_committed = fields.get("isolation_level", 0) == 1
    part = Slice(_PARTITIONS_PER_STEP)
    still_open: list[Open] = []
    topics: Answers = []
    for topic in fields["topics"]:
        name: str = topic["name"]
        answers: list[Answer] = []
        topics.append((name, answers))
        for wanted in topic["partitions"]:
            if part.over():
                yield None
            index = wanted["partition_index"]
            try:
                found = _find(context, TopicPartition(name, index), wanted, read_committed)
            except RequestError as error:
                answers.append((index, context.failed(error), _NOTHING))
                continue
            if isinstance(found, FoundOffset):
                answers.append((index, 0, found))
            else:
                still_open.append((answers, len(answers), found))
                answers.append((index, 0, _NOTHING))
    if still_open:
        return _search_on(context, version, topics, still_open)
    return (yield from _encode(version, topics))


def _find(
    context: Context, tp: TopicPartition, wanted: dict[str, Any], read_committed: bool
) -> Maybe[FoundOffset]:
    timestamp = wanted["timestamp"]
    found = context.services.records.list_offset(
        tp,
        EARLIEST_TIMESTAMP if timestamp in (_EARLIEST_LOCAL, *_TIERED) else timestamp,
        leader_epoch=wanted.get("current_leader_epoch", -1),
        read_committed=read_committed,
    )
    # Of a partition that is not here nothing is said, not even that nothing of it is tiered.
    return _NOTHING if timestamp in _TIERED else found


async def _search_on(
    context: Context, version: int, topics: Answers, still_open: list[Open]
) -> Reply | Steps:
    # One after the other: each is a few index look-ups on a thread, and threads are few.
    for answers, place, found in still_open:
        index = answers[place][0]
        try:
            answers[place] = (index, 0, await found)
        except RequestError as error:
            answers[place] = (index, context.failed(error), _NOTHING)
    return begun(_encode(version, topics))


def _encode(version: int, topics: Answers) -> Generator[None, None, Encoded]:
    part = Slice(_ENCODED_PER_STEP)
    flexible = version >= _FLEXIBLE_FROM
    out = bytearray(4 if version >= 2 else 0)  # never throttled
    out += uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics))
    for name, answers in topics:
        raw = name.encode()
        out += uvarint(len(raw) + 1) if flexible else _INT16.pack(len(raw))
        out += raw
        out += uvarint(len(answers) + 1) if flexible else _INT32.pack(len(answers))
        for at in range(0, len(answers), _ENCODED_PER_STEP):
            several = answers[at : at + _ENCODED_PER_STEP]
            if flexible:
                for index, code, (offset, time_ms, epoch) in several:
                    out += _PARTITION_V6.pack(index, code, time_ms, offset, epoch, 0)
            elif version >= 4:
                for index, code, (offset, time_ms, epoch) in several:
                    out += _PARTITION_V4.pack(index, code, time_ms, offset, epoch)
            else:
                for index, code, (offset, time_ms, _) in several:
                    out += _PARTITION_V1.pack(index, code, time_ms, offset)
            if part.over(len(several)):
                yield
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    return Encoded((out,))
