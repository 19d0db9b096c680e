"""Ctrl-C ends a command in bounded time. [A]

asyncio turns Ctrl-C into a cancellation, which lets a command commit, leave its group and say good-bye. None of that
may keep a person waiting: if brokers are away, or nobody reads our standard output, the process ends all the same.
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
#: A last commit and a word to the coordinator take milliseconds; a broker that is busy gets some more.
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
        """`work`, with time running from the first Ctrl-C on."""
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
        sentence = f"ottla: not all could be ended within {self._patience_s:g} s of Ctrl-C; gave up.\n"
        os.write(2, sentence.encode())
        os._exit(INTERRUPTED)
