"""Large requests in slices: a generator yields after each slice and returns its result. [P]

The driver decides what happens between two slices: the scheduler serves other connections there.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

R = TypeVar("R")

#: Partitions per slice. One costs 5 to 20 µs, so a slice is well below a millisecond.
PARTITIONS_PER_STEP = 32


def exhaust(steps: Generator[None, None, R]) -> R:
    """All slices at once: for what is small."""
    while True:
        try:
            next(steps)
        except StopIteration as last:
            result: R = last.value
            return result
