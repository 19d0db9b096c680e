"""Runs blocking work: on a few threads in production, as virtual delay in the simulation.

fsync, reads that miss the page cache, compaction and start-up scans block for milliseconds; everything else
that touches a file is a page-cache copy and stays on the loop, because a thread switch costs more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` off the loop; return its result or raise its exception. Waits for a free thread."""
