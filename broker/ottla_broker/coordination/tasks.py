"""Errors of background tasks, raised where the broker sees them. [S]"""

from __future__ import annotations

import asyncio


def surface(task: asyncio.Task[None]) -> None:
    """Raise a task's error in the loop at once, not when the task is collected: a broken invariant stops the broker."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
