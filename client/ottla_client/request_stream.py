"""One stream to one broker: requests out in order, answers in, and what was lost when it breaks. [S]

Lives from the first request until the stream ends for any reason; its owner then opens another.
Back-pressure is HTTP/2's: `write` waits when the broker reads no more. How much may wait here is the
owner's to bound.
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

#: What is sent and answered as one: a list of batches, a list of partitions to fetch.
Item = TypeVar("Item")

#: A broker that is alive ends a finished stream as soon as it has read it.
_FINISH_TIMEOUT_S = 5.0
#: What grpc raises on a stream that is over, whoever ended it.
_STREAM_OVER = (aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError)


class RequestStream(Generic[Item]):
    """Subclasses say which method it is, what a request looks like, and what an answer means."""

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
        #: By correlation, oldest first: the item of a request, and when it was written.
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
        """Take the answer; False if it makes no sense, which breaks the stream and loses the item."""
        raise NotImplementedError

    def written(self, item: Item) -> bool:
        """Called after the write; True if no answer will come."""
        return False

    def unasked(self, answer: Any) -> None:
        """An answer to a request that awaits none."""

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
        """Give up on the stream; everything unanswered counts as lost."""
        self._broken = True
        self._wake.set()
        if self._call is not None:
            self._call.cancel()

    async def finish(self, timeout_s: float) -> None:
        """Say that nothing more comes, and wait until the broker has read it all and ended the stream."""
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
            pass  # the channel was closed under us, because the broker is gone
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
            # Entered before the write: the answer can be there before `write` returns.
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
            return  # the broker was quicker

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
