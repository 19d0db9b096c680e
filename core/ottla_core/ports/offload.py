"""Where blocking work goes: a few threads in production, virtual delay in the simulation.

fsync, reads that miss the page cache, compaction and start-up scans block for milliseconds; everything else
that touches a file is a page-cache copy and stays on the loop, because a hop to a thread costs more than it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` off the loop and give back its result or its exception. Bounded: waits for a free thread."""
