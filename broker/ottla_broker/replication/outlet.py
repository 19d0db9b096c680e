"""What a led partition knows of a stream that carries it to one follower. [P]

Below partitions on purpose: streams know partitions, partitions know only that somebody wants to be woken.
"""

from __future__ import annotations

from typing import Protocol


class Outlet(Protocol):
    @property
    def heard_at(self) -> float:
        """When the follower last said anything, by the monotonic clock."""

    def mark(self, size: int = 0) -> None:
        """There is more to send: `size` bytes of batches, or something else."""

    def mark_watermark(self) -> None:
        """The high watermark has moved."""

    def end(self) -> None:
        """The leadership is over: send nothing more of it."""
