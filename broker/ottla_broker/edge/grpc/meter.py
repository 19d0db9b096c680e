"""Quotas on the native protocol: the response waits as long as the quota demands. [S]

A stream has few unanswered requests, and responses are in order, so a client whose responses wait sends no more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from ottla_broker.caller import Caller
from ottla_broker.edge.grpc.answered_stream import Handled
from ottla_broker.quota import REQUEST_PERCENTAGE
from ottla_broker.requests import Maybe
from ottla_broker.steps import Steps
from ottla_core.errors import ThrottlingQuotaExceeded

if TYPE_CHECKING:
    from ottla_broker.service.throttling import Throttling

T = TypeVar("T")

#: More than all gRPC listeners of a broker have connections.
_ADMITTED_MAX = 10_000


class _Services(Protocol):
    @property
    def caller(self) -> Caller: ...

    @property
    def throttling(self) -> Throttling: ...


class Meter:
    """One stream and one quota of bytes; and the quota of time."""

    def __init__(self, services: _Services, quota: str) -> None:
        self._throttling = services.throttling
        self._caller = services.caller
        self._quota = quota

    def charged(self, size: int, begin: Callable[[], Handled[T]]) -> Handled[T]:
        """What a request of this size is answered, perhaps later."""
        if not self._throttling.is_on:
            return begin()
        now = self._throttling.now
        began = now()
        handled = begin()
        worked_s = now() - began
        if isinstance(handled, GeneratorType):
            return self._steps(cast("Steps[Maybe[T | None]]", handled), size, worked_s)
        wait_s = self._wait_s(size, worked_s)
        return self._later(cast("Maybe[T | None]", handled), wait_s) if wait_s else handled

    def measured(self, begin: Callable[[], Maybe[T | None]], size_of: Callable[[T], int]) -> Maybe[T | None]:
        """The same, where the response is charged."""
        if not self._throttling.is_on:
            return begin()
        now = self._throttling.now
        began = now()
        answer = begin()
        worked_s = now() - began
        if isinstance(answer, Awaitable):
            return self._measured_later(answer, size_of, worked_s)
        wait_s = self._wait_s(0 if answer is None else size_of(answer), worked_s)
        return self._later(answer, wait_s) if wait_s else answer

    async def _measured_later(
        self, answer: Awaitable[T | None], size_of: Callable[[T], int], worked_s: float
    ) -> T | None:
        made = await answer
        wait_s = self._wait_s(0 if made is None else size_of(made), worked_s)
        if wait_s:
            await self._throttling.pause(wait_s)
        return made

    def _wait_s(self, size: int, worked_s: float) -> float:
        throttling = self._throttling
        wait_s = throttling.charge(self._caller, self._quota, size)
        if throttling.is_timed:
            wait_s = max(wait_s, throttling.charge(self._caller, REQUEST_PERCENTAGE, worked_s))
        return wait_s

    async def _later(self, answer: Maybe[T | None], wait_s: float) -> T | None:
        made = await answer if isinstance(answer, Awaitable) else answer
        await self._throttling.pause(wait_s)
        return made

    def _steps(self, steps: Steps[Maybe[T | None]], size: int, worked_s: float) -> Steps[Maybe[T | None]]:
        now = self._throttling.now
        try:
            while True:
                began = now()
                try:
                    pause = next(steps)
                except StopIteration as last:
                    wait_s = self._wait_s(size, worked_s + now() - began)
                    return self._later(last.value, wait_s) if wait_s else last.value
                worked_s += now() - began
                yield pause
        finally:
            steps.close()


class CallMeter:
    """The quotas of unary calls and of connections, for all calls of one listener."""

    def __init__(self, throttling: Throttling, caller_of: Callable[[Any], Caller]) -> None:
        self._throttling = throttling
        self._caller_of = caller_of
        #: Connections, by address and port, that were let in; the oldest is forgotten first, and asked again.
        self._admitted: OrderedDict[str, None] = OrderedDict()

    def check_connection(self, peer: str, address: str) -> None:
        """ThrottlingQuotaExceeded for the calls of a connection that connection_creation_rate does not allow yet."""
        if not self._throttling.limits_connections or peer in self._admitted:
            return
        wait_s = self._throttling.connected(address)
        if wait_s:
            raise ThrottlingQuotaExceeded(
                f"Too many connections from {address} (connection_creation_rate); try again in {wait_s:.1f} s."
            )
        self._admitted[peer] = None
        if len(self._admitted) > _ADMITTED_MAX:
            self._admitted.popitem(last=False)

    async def pause(self, context: Any, worked_s: float) -> None:
        """Returns when the response may be sent."""
        if self._throttling.is_timed:
            wait_s = self._throttling.charge(self._caller_of(context), REQUEST_PERCENTAGE, worked_s)
            if wait_s:
                await self._throttling.pause(wait_s)
