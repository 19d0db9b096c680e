"""Ctrl-C ends a command in bounded time. [A]

asyncio turns Ctrl-C into a cancellation, so that a command can commit offsets, leave its group and disconnect. All of
this has a deadline: the process exits even if brokers do not answer, or if standard output is a blocked pipe.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

INTERRUPTED = 130
#: A last commit and leaving the group take milliseconds; this allows for a busy broker.
PATIENCE_S = 10.0


class Interrupts:
    """`with Interrupts() as interrupts: asyncio.run(interrupts.watched(work))`"""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._timer = threading.Timer(patience_s, self._give_up)
        self._timer.daemon = True

    def __enter__(self) -> Interrupts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`; the first Ctrl-C starts the deadline."""
        obey = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(obey):
            return await work

        def interrupted(number: int, frame: FrameType | None) -> None:
            if self._timer.ident is None:
                self._timer.start()
            obey(number, frame)

        signal.signal(signal.SIGINT, interrupted)
        try:
            return await work
        finally:
            if signal.getsignal(signal.SIGINT) is interrupted:
                signal.signal(signal.SIGINT, obey)

    def _give_up(self) -> None:
        sentence = f"ottla: exited without a clean shutdown, {self._patience_s:g} s after Ctrl-C.\n"
        os.write(2, sentence.encode())
        os._exit(INTERRUPTED)
