"""Quotas on streams of the native protocol: the response waits as long as the quota demands. [S]

A stream has few unanswered requests, and responses are in order, so a client whose responses wait sends no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import GeneratorType
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from ottla_broker.caller import Caller
from ottla_broker.edge.grpc.answered_stream import Handled
from ottla_broker.requests import Maybe
from ottla_broker.steps import Steps

if TYPE_CHECKING:
    from ottla_broker.service.throttling import Throttling

T = TypeVar("T")


class _Services(Protocol):
    @property
    def caller(self) -> Caller: ...

    @property
    def throttling(self) -> Throttling: ...


class Meter:
    """One stream and one quota."""

    def __init__(self, services: _Services, quota: str) -> None:
        self._throttling = services.throttling
        self._caller = services.caller
        self._quota = quota

    def charged(self, size: int, handled: Handled[T]) -> Handled[T]:
        """What a request of this size is answered, perhaps later."""
        if not self._throttling.is_on:
            return handled
        wait_s = self._throttling.charge(self._caller, self._quota, size)
        if not wait_s:
            return handled
        if isinstance(handled, GeneratorType):
            return self._steps(cast("Steps[Maybe[T | None]]", handled), wait_s)
        return self._later(cast("Maybe[T | None]", handled), wait_s)

    def measured(self, answer: Maybe[T | None], size_of: Callable[[T], int]) -> Maybe[T | None]:
        """The same, where the response is charged."""
        if not self._throttling.is_on:
            return answer
        if isinstance(answer, Awaitable):
            return self._measured_later(answer, size_of)
        wait_s = self._charge(answer, size_of)
        return self._later(answer, wait_s) if wait_s else answer

    async def _measured_later(self, answer: Awaitable[T | None], size_of: Callable[[T], int]) -> T | None:
        made = await answer
        wait_s = self._charge(made, size_of)
        if wait_s:
            await self._throttling.pause(wait_s)
        return made

    def _charge(self, answer: T | None, size_of: Callable[[T], int]) -> float:
        if answer is None:
            return 0.0
        return self._throttling.charge(self._caller, self._quota, size_of(answer))

    async def _later(self, answer: Maybe[T | None], wait_s: float) -> T | None:
        made = await answer if isinstance(answer, Awaitable) else answer
        await self._throttling.pause(wait_s)
        return made

    def _steps(self, steps: Steps[Maybe[T | None]], wait_s: float) -> Steps[Maybe[T | None]]:
        return self._later((yield from steps), wait_s)
