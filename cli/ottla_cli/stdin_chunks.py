"""Standard input in chunks, without blocking the event loop. [A]

A terminal or a pipe may be silent for hours while batches must be sent and Ctrl-C must work, so a thread
reads. It is a daemon thread: nothing can interrupt its read, and the process must be able to exit.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

CHUNK_BYTES = 256 * 1024
#: Chunks read ahead: enough to keep reader and sender busy; bounds memory.
_AHEAD_MAX = 8


async def stdin_chunks(descriptor: int = 0) -> AsyncIterator[bytes]:
    """Chunks as they arrive, until the end of the input."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD_MAX)

    def read() -> None:
        while True:
            room.acquire()
            try:
                chunk: bytes | OSError = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:
                return  # the loop is closed
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        yield chunk
