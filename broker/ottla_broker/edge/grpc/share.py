"""One stream's share of the memory that all connections have together. [S]

gRPC receives a whole message before its size is known. So a stream sets aside what its last message weighed
before it asks for the next one, and stands in line if there is not that much. While it stands there nothing is read
from it: the peer's writes wait. A stream that then stays quiet gives back what it set aside, or a few idle ones would
hold up all others; the message that wakes it is not planned for, the one after it is. Small messages are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ottla_broker.edge.memory import Memory

#: Below this a message costs its stream no more than the stream itself.
WORTH_COUNTING_BYTES = 64 * 1024
#: A stream that sends at full speed brings its next message long before that.
_QUIET_S = 1.0


class Share:
    __slots__ = ("_expected", "_held", "_memory", "_quiet", "_turn")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        #: What the next message is expected to weigh; zero if it is not worth counting.
        self._expected = 0
        self._held = 0
        self._quiet: asyncio.TimerHandle | None = None
        self._turn: asyncio.Event | None = None

    def must_wait(self) -> bool:
        """Set memory aside for the next message; True if `granted` has to be awaited for it."""
        if not self._expected:
            return False
        if self._memory.reserve(self._expected, self._on_granted):
            self._hold(self._expected)
            return False
        self._turn = asyncio.Event()
        return True

    async def granted(self) -> None:
        """First come, first served. The wait ends: earlier streams send, fall silent or are closed."""
        if self._turn is not None:
            await self._turn.wait()

    def _on_granted(self) -> None:
        self._hold(self._expected)
        if self._turn is not None:
            self._turn.set()

    def _hold(self, size: int) -> None:
        self._held = size
        self._quiet = asyncio.get_running_loop().call_later(_QUIET_S, self.handled)

    def received(self, size: int) -> None:
        self._expected = size if size >= WORTH_COUNTING_BYTES else 0

    def handled(self) -> None:
        """The message is done with, or does not come: others may have its place."""
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        held, self._held = self._held, 0
        if held:
            self._memory.release(held)

    @contextmanager
    def unsent(self, size: int) -> Iterator[None]:
        """An answer that its peer has yet to take."""
        self._memory.owe(size)
        try:
            yield
        finally:
            self._memory.owe(-size)

    def close(self) -> None:
        self._memory.forget(self._on_granted)
        self.handled()
