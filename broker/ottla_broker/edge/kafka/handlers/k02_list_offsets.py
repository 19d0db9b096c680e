"""ListOffsets (2), versions 1-11: the offset for a time, and the special ones. [S]

Special times: -1 latest, -2 earliest, -3 the record with the greatest timestamp, -4 earliest on local disk
(the same as -2, all our disks are local), -5 last tiered and -6 first to be tiered (offset -1: nothing is
tiered).

Versions: 2 adds the isolation level; 4 leader epochs; 6 is flexible; 7, 8, 9 and 11 add the special times
-3, -4, -5 and -6; 10 a timeout. Left out: the timeout (searching is local and short) and the replica id (it
is ignored).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import EARLIEST_TIMESTAMP, FoundOffset, Maybe
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

_EARLIEST_LOCAL = -4
#: The last that is tiered, and the first to be tiered.
_TIERED = (-5, -6)
_NOTHING = FoundOffset(-1, -1, -1)

#: An answer whose offset is still being searched, and what to await for it.
Open = tuple[dict[str, Any], Awaitable[FoundOffset]]


def handle(context: Context, request: Request) -> Maybe[Reply]:
    fields = request.fields()
    read_committed = fields.get("isolation_level", 0) == 1
    still_open: list[Open] = []
    topics: list[dict[str, Any]] = []
    for topic in fields["topics"]:
        answers: list[dict[str, Any]] = []
        for wanted in topic["partitions"]:
            tp = TopicPartition(topic["name"], wanted["partition_index"])
            answer: dict[str, Any] = {"partition_index": tp.partition}
            answers.append(answer)
            try:
                found = _find(context, tp, wanted, read_committed)
            except RequestError as error:
                _refuse(context, answer, error)
                continue
            if isinstance(found, FoundOffset):
                _fill(answer, found)
            else:
                still_open.append((answer, found))
        topics.append({"name": topic["name"], "partitions": answers})
    reply = {"topics": topics}
    return _search_on(context, reply, still_open) if still_open else reply


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


async def _search_on(context: Context, reply: Reply, still_open: list[Open]) -> Reply:
    # One after the other: each is a few index look-ups on a thread, and threads are few.
    for answer, found in still_open:
        try:
            _fill(answer, await found)
        except RequestError as error:
            _refuse(context, answer, error)
    return reply


def _fill(answer: dict[str, Any], found: FoundOffset) -> None:
    answer.update(
        error_code=0, offset=found.offset, timestamp=found.timestamp_ms, leader_epoch=found.leader_epoch
    )


def _refuse(context: Context, answer: dict[str, Any], error: RequestError) -> None:
    answer.update(error_code=context.failed(error), offset=-1, timestamp=-1, leader_epoch=-1)
