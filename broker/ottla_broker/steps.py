"""Large requests in slices: a generator yields after each slice and returns its result. [P]

The driver decides what happens between two slices: the scheduler serves other connections there. A generator that
has to wait for something before it goes on yields a future: the driver resumes it when that is done, and handles no
later request of the same connection before. The outcome of the future is the generator's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

R = TypeVar("R")
T = TypeVar("T")

#: Partitions per slice. One costs 5 to 20 µs, so a slice is well below a millisecond.
PARTITIONS_PER_STEP = 32

#: Items of a list that are filtered in one slice; one costs a microsecond.
_FILTERED_PER_STEP = 8 * PARTITIONS_PER_STEP

Pause: TypeAlias = Awaitable[Any] | None
Steps: TypeAlias = Generator[Pause, None, R]


def exhaust(steps: Steps[R]) -> R:
    """All slices at once: for what is small and waits for nothing."""
    while True:
        try:
            next(steps)
        except StopIteration as last:
            result: R = last.value
            return result


def begun(steps: Steps[R]) -> R | Steps[R]:
    """The result, if it is there after the first slice, else the rest of the slices."""
    try:
        pause = next(steps)
    except StopIteration as last:
        result: R = last.value
        return result
    return _rest(pause, steps)


def _rest(pause: Pause, steps: Steps[R]) -> Steps[R]:
    yield pause
    return (yield from steps)


def kept(items: Sequence[T], keep: Callable[[T], bool]) -> Steps[list[T]]:
    """The items that pass, in slices."""
    found: list[T] = []
    for at in range(0, len(items), _FILTERED_PER_STEP):
        if at:
            yield None
        found += filter(keep, items[at : at + _FILTERED_PER_STEP])
    return found


class Slice:
    """Counts work within one slice, over several loops: `if slice.over(): yield None` after each item."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int = PARTITIONS_PER_STEP) -> None:
        self._size = self._left = size

    def over(self, work: int = 1) -> bool:
        self._left -= work
        if self._left > 0:
            return False
        self._left = self._size
        return True
