"""A Follow stream to one follower, as a led partition sees it. [P]

Below partitions on purpose: streams know partitions, partitions only know that a stream wants to be woken.
"""

from __future__ import annotations

from typing import Protocol


class Outlet(Protocol):
    @property
    def heard_at(self) -> float:
        """Monotonic time of the follower's last message."""

    def mark(self, size: int = 0) -> None:
        """There is more to send: `size` bytes of batches, or something else."""

    def mark_watermark(self) -> None:
        """The high watermark has moved."""

    def end(self) -> None:
        """The leadership is over: send nothing more of it."""

    def reject(self) -> None:
        """The follower is not a replica any more: send nothing, unless it asks again and is one then."""
