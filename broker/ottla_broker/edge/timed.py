"""Measures how long a coroutine works and how long it waits. [S]"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Timed(Generic[T]):
    """`answer = await timed`, then `timed.worked_s`: the time between its suspensions."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.worked_s = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        thrown: BaseException | None = None
        while True:
            began = monotonic()
            try:
                pending = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self.worked_s += monotonic() - began
            thrown = None
            try:
                yield pending
            except BaseException as error:
                # Passed on: the coroutine decides what a cancellation means.
                thrown = error
