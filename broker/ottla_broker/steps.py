"""Large requests in slices: a generator yields after each slice and returns its result. [P]

The driver decides what happens between two slices: the scheduler serves other connections there. A generator that
has to wait for something before it goes on yields a future: the driver resumes it when that is done, and handles no
later request of the same connection before. The outcome of the future is the generator's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, TypeAlias, TypeVar

R = TypeVar("R")

#: Partitions per slice. One costs 5 to 20 µs, so a slice is well below a millisecond.
PARTITIONS_PER_STEP = 32

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
