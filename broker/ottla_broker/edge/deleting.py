"""DeleteRecords of several partitions for both edges: they share one timeout. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ottla_broker.event_loop import give_way
from ottla_broker.requests import WAIT_S_MAX, Maybe
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

#: Partition, offset (-1: the high watermark), timeout in seconds; the low watermark.
Delete = Callable[[TopicPartition, int, float], Maybe[int]]

#: A timeout of zero still leaves time for one round trip to the in-sync replicas, so that the answer is known.
_TIMEOUT_S_MIN = 1.0
#: Partitions per turn of the loop: each may write its epochs to a file.
_PER_TURN = 16


async def each_deleted(
    delete: Delete, wanted: Sequence[tuple[TopicPartition, int]], timeout_s: float
) -> list[int | RequestError]:
    """The low watermark or error of each partition, in order. All are started before the first is awaited."""
    timeout_s = min(max(timeout_s, _TIMEOUT_S_MIN), WAIT_S_MAX)
    outcomes: list[int | RequestError] = []
    waiting: dict[int, asyncio.Future[int]] = {}
    try:
        for at, (tp, offset) in enumerate(wanted):
            if at and at % _PER_TURN == 0:
                await give_way()
            try:
                outcome = delete(tp, offset, timeout_s)
                if isinstance(outcome, Awaitable):
                    waiting[at] = asyncio.ensure_future(outcome)
                    outcome = -1
                outcomes.append(outcome)
            except RequestError as error:
                outcomes.append(error)
        for at, future in waiting.items():
            try:
                outcomes[at] = await future
            except RequestError as error:
                outcomes[at] = error
    finally:
        for future in waiting.values():
            future.cancel()  # Only if the request was cancelled; a finished one ignores it.
    return outcomes
