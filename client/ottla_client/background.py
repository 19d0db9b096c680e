"""Background tasks of one client, which end with it. [S]

A `TaskGroup` must be entered and left by the same task, but users may start a client in one
task and stop it in another. So this class keeps every task, logs a failure at once, and `close` ends
all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)

#: A cancelled task needs one or two iterations of the loop.
_CLOSE_TIMEOUT_S = 5.0


class Background:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        if self._closed:
            work.close()
            raise RuntimeError(f"{name} was started after the close")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed unexpectedly", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel all tasks and wait for them. A task that does not end in time is logged and left to the loop."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_S)
            for task in stuck:
                log.error("%s did not end within %g s of being cancelled", task.get_name(), _CLOSE_TIMEOUT_S)
