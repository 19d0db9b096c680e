"""Tasks that belong to one client and end with it. [S]

A `TaskGroup` would do, but it has to be entered and left by the same task, and users start a client in one
task and stop it in another. So: every task is kept here, a failure is logged at once, and `close` leaves
none behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)

#: A cancelled task needs a turn or two of the loop.
_CLOSE_TIMEOUT_S = 5.0


class Background:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        if self._closed:
            work.close()
            raise RuntimeError(f"{name} would start after the close")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed unexpectedly", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel all, and wait until they are gone. One that does not go is named, and left to the loop's end."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_S)
            for task in stuck:
                log.error("%s did not end within %g s of being cancelled", task.get_name(), _CLOSE_TIMEOUT_S)
