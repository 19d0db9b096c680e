"""Quotas on the Kafka edge: what a request is charged, and how its response says the wait (KIP-219). [S]

The response leaves at once with its `throttle_time_ms`, and the connection takes no requests until that time is over,
whether its client waits or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from ottla_broker.edge.kafka import schema
from ottla_broker.edge.kafka.request import Encoded, Reply, Request
from ottla_broker.edge.kafka.versions import Api
from ottla_broker.edge.timed import Timed
from ottla_broker.quota import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

if TYPE_CHECKING:
    from ottla_broker.caller import Caller
    from ottla_broker.request_metrics import ApiTimes
    from ottla_broker.service.throttling import Throttling

T = TypeVar("T")

_PRODUCE, _FETCH = 0, 1
#: CreateTopics, DeleteTopics, CreatePartitions: their handlers know what they are charged, and say the wait.
_MUTATIONS = frozenset((19, 20, 37))
_THROTTLE = "throttle_time"
_INT32 = Struct(">i")


def wait_s(throttling: Throttling, caller: Caller, request: Request, reply: Reply) -> float:
    """Charge a request that was served, for all but its time."""
    key = request.api.key
    if key == _PRODUCE:
        return throttling.charge(caller, PRODUCER_BYTE_RATE, len(request.body))
    if key == _FETCH and isinstance(reply, Encoded):
        if reply.wait_s:
            return reply.wait_s  # It has no records.
        return throttling.charge(caller, CONSUMER_BYTE_RATE, sum(map(len, reply.body)))
    if key in _MUTATIONS and isinstance(reply, dict):
        return float(reply.get(_THROTTLE, 0)) / 1000
    return 0.0


def with_wait(request: Request, reply: Reply, wait: float) -> Reply:
    """The response with its throttle time, if its version has one: of Produce the last field, else the first."""
    wait_ms = max(1, round(wait * 1000))
    if isinstance(reply, dict):
        return reply | {_THROTTLE: wait_ms}
    if reply is None:
        return reply
    body = list(reply.body)
    if request.api.key == _PRODUCE:
        tags = 1 if request.version >= request.api.flexible_from else 0
        last = bytes(body[-1])
        body[-1] = last[: len(last) - 4 - tags] + _INT32.pack(wait_ms) + last[len(last) - tags :]
    elif _is_first(request.api, request.version):
        body[0] = _INT32.pack(wait_ms) + bytes(body[0][4:])
    return Encoded(body, reply.hold)


@cache
def _is_first(api: Api, version: int) -> bool:
    return schema.load(api, version, "response").fields[0].name == _THROTTLE


class Muting:
    """The waits of one connection."""

    __slots__ = ("_billed_at", "_now", "_throttling", "_unbilled_s", "_until", "_wake")

    def __init__(self, throttling: Throttling, now: Callable[[], float], wake: Callable[[], None]) -> None:
        """`wake` is called when the connection may take requests again."""
        self._throttling = throttling
        self._now = now
        self._wake = wake
        self._until = 0.0
        #: Time of the event loop that this connection took and has not been charged for; since when it has the turn.
        self._unbilled_s = 0.0
        self._billed_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the connection takes no requests."""
        return self._until > 0.0

    def hold(self) -> None:
        """For good: the connection is about to be closed."""
        self._until = float("inf")

    # ------------------------------------------------------------------ time, with request_percentage only

    def turn_began(self) -> None:
        self._billed_at = self._now()

    def turn_ended(self) -> None:
        self._unbilled_s += self._now() - self._billed_at
        self._billed_at = 0.0

    def timed(self, reply: Awaitable[T]) -> Awaitable[T]:
        """The same; the time that it works is charged with the request."""
        return self._timed(reply) if isinstance(reply, Coroutine) else reply

    async def _timed(self, reply: Coroutine[Any, Any, T]) -> T:
        work = Timed(reply)
        try:
            return await work
        finally:
            self._unbilled_s += work.worked_s

    def _bill(self) -> float:
        worked_s, self._unbilled_s = self._unbilled_s, 0.0
        if self._billed_at:
            now = self._now()
            worked_s += now - self._billed_at
            self._billed_at = now
        return worked_s

    # ------------------------------------------------------------------ waits

    def charged(self, caller: Caller, request: Request, reply: Reply, times: ApiTimes) -> Reply:
        """Charge the request; if its client exceeds a quota, mute the connection and say so."""
        wait = wait_s(self._throttling, caller, request, reply)
        if self._throttling.is_timed:
            wait = max(wait, self._throttling.charge(caller, REQUEST_PERCENTAGE, self._bill()))
        if not wait:
            return reply
        times.throttle_s += wait
        muted, self._until = self._until, max(self._until, self._now() + wait)
        if not muted:
            asyncio.get_running_loop().call_later(wait, self._unmute)
        return with_wait(request, reply, wait)

    def _unmute(self) -> None:
        left_s = self._until - self._now()
        if left_s > 0.0:
            asyncio.get_running_loop().call_later(left_s, self._unmute)
            return
        self._until = 0.0
        self._wake()
