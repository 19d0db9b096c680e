"""A thread for blocking work, as tests want it: the Offload port without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Thread:
    """Work that blocks, done at once; knows whether it is being done."""

    busy = False

    async def run(self, work: Callable[[], T]) -> T:
        self.busy = True
        try:
            return work()
        finally:
            self.busy = False
