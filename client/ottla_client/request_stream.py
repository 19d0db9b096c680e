"""One stream to one broker: sends requests in order, receives responses, reports requests lost on a break. [S]

Lives from the first request until the stream ends for any reason; its owner then opens another.
Back-pressure is HTTP/2's: `write` waits while the broker does not read. The owner bounds
the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from grpc import aio

from ottla_client.background import Background
from ottla_client.connection import Broker
from ottla_core.ports.clock import Clock

#: Content of one request: a list of batches, or of partitions to fetch.
Item = TypeVar("Item")

#: A healthy broker ends a finished stream as soon as it has read it.
_FINISH_TIMEOUT_S = 5.0
#: What gRPC raises on a stream that has ended, on either side.
_STREAM_OVER = (aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError)


class RequestStream(Generic[Item]):
    """Subclasses define the method, the requests, and the handling of responses."""

    method = ""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        background: Background,
        on_lost: Callable[[Any, list[Item]], None],
    ) -> None:
        self.broker = broker
        self._clock = clock
        self._on_lost = on_lost
        self._queue: deque[Item] = deque()
        self._wake = asyncio.Event()
        #: By correlation id, oldest first: the item of a request, and when it was written.
        self._unanswered: dict[int, tuple[Item, float]] = {}
        self._correlation = 0
        self._broken = False
        self._finishing = False
        self._call: Any = None
        self._task = background.spawn(self._run(background), f"{self.method} to {broker.address}")

    # ------------------------------------------------------------------ for subclasses

    def request(self, correlation: int, item: Item) -> Any:
        raise NotImplementedError

    def answered(self, item: Item, answer: Any) -> bool:
        """Handle the response; False if it is not valid, which breaks the stream and loses the item."""
        raise NotImplementedError

    def written(self, item: Item) -> bool:
        """Called after the write; True if no response is expected."""
        return False

    def unasked(self, answer: Any) -> None:
        """A response to a request that expects none."""

    # ------------------------------------------------------------------ for the owner

    @property
    def outstanding(self) -> int:
        return len(self._queue) + len(self._unanswered)

    def send(self, item: Item) -> None:
        self._queue.append(item)
        self._wake.set()

    def oldest_sent_at(self) -> float | None:
        for _item, sent_at in self._unanswered.values():
            return sent_at
        return None

    def break_off(self) -> None:
        """Break the stream; all unanswered requests count as lost."""
        self._broken = True
        self._wake.set()
        if self._call is not None:
            self._call.cancel()

    async def finish(self, timeout_s: float) -> None:
        """Half-close the stream, and wait until the broker has read everything and ended it."""
        self._finishing = True
        self._wake.set()
        await asyncio.wait((self._task,), timeout=timeout_s)

    # ------------------------------------------------------------------ inside

    async def _run(self, background: Background) -> None:
        try:
            self._call = getattr(self.broker.log, self.method)()
            writing = background.spawn(self._write(), f"writing to {self.broker.address}")
            reading = background.spawn(self._read(), f"reading from {self.broker.address}")
            try:
                await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
                if self._finishing and not self._broken and writing.done():
                    await asyncio.wait((reading,), timeout=_FINISH_TIMEOUT_S)
            finally:
                self._call.cancel()
                writing.cancel()
                reading.cancel()
        except aio.UsageError:
            pass  # the channel was closed because the broker was removed
        finally:
            self._broken = True
            lost = [item for item, _sent_at in self._unanswered.values()]
            lost.extend(self._queue)
            self._unanswered.clear()
            self._queue.clear()
            self._on_lost(self, lost)

    async def _write(self) -> None:
        while not self._broken:
            if not self._queue:
                if self._finishing:
                    await self._half_close()
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            item = self._queue.popleft()
            self._correlation += 1
            correlation = self._correlation
            # Registered before the write: the response may arrive before `write` returns.
            self._unanswered[correlation] = (item, self._clock.monotonic())
            try:
                await self._call.write(self.request(correlation, item))
            except _STREAM_OVER:
                return
            if self.written(item):
                self._unanswered.pop(correlation, None)

    async def _half_close(self) -> None:
        try:
            await self._call.done_writing()
        except _STREAM_OVER:
            return  # the broker has ended the stream first

    async def _read(self) -> None:
        while True:
            try:
                answer = await self._call.read()
            except _STREAM_OVER:
                return
            if answer is aio.EOF:
                return
            asked = self._unanswered.get(answer.correlation)
            if asked is None:
                self.unasked(answer)
                continue
            if not self.answered(asked[0], answer):
                return
            del self._unanswered[answer.correlation]
