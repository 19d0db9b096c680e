"""One bidirectional stream: requests in, one answer each, in order, a bounded number of them unanswered. [S]

Owns reading, ordering, the bound and the end of a stream; what a request means is the handler's. The handler
starts its work when it is called, so requests take effect in the order of the stream even when an earlier
answer still waits (for replicas, or for data).

* Back-pressure: at `unanswered_max`, while its share of the memory is used up, or while others have their turn,
  nothing more is read, HTTP/2's window fills, and the peer's writes wait.
* One writer: two concurrent writes fail in grpc.aio. The reader writes by itself only while nothing is
  queued, which is when the writer sleeps; so there is never a second one.
* The end: at the peer's end of stream, or at `stop()`, what was read is still answered, then the call ends
  with OK.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from grpc import aio

from ottla_broker.edge.grpc.share import WORTH_COUNTING_BYTES, Share
from ottla_broker.edge.grpc.turns import Turn, Turns
from ottla_broker.request_metrics import ApiTimes, ClientTraffic
from ottla_broker.requests import Maybe
from ottla_broker.scheduler import Scheduler
from ottla_broker.steps import Steps
from ottla_broker.visits import visited
from ottla_core.errors import RequestError, RequestTimedOut

#: A large answer must leave within this time, as on the Kafka edge.
STALL_S = 30.0

Q = TypeVar("Q")
A = TypeVar("A")
#: An answer or None, or something that will give one; or the slices of a large request, which end with either.
Handled: TypeAlias = Maybe[A | None] | Steps[Maybe[A | None]]


class PeerGone(Exception):
    """The stream ended before a response was written: the peer disconnected, which is not an error."""


class _Times(NamedTuple):
    """When a request was read, when its handler was called, when that returned."""

    arrived: float
    started: float
    handled: float


class AnsweredStream(Generic[Q, A]):
    def __init__(
        self,
        context: Any,
        handle: Callable[[Q], Handled[A]],
        *,
        unanswered_max: int,
        share: Share,
        scheduler: Scheduler,
        turns: Turns | None = None,
        weigh: Callable[[Q], int] | None = None,
        weigh_answer: Callable[[A], int] | None = None,
        end_waits: Callable[[], None] | None = None,
        sending: Callable[[A], float] | None = None,
        times: ApiTimes | None = None,
        traffic: ClientTraffic | None = None,
    ) -> None:
        """`weigh` and `weigh_answer` give the bytes of a message, where they are worth counting.

        `sending` is called when an answer is about to be written: from here on its memory is counted here. It returns
        the seconds that the request waited for records. `times` and `traffic` count for the metrics.

        `turns` if the messages of such streams may be large: then only some of them are read at the same time.
        """
        self._context = context
        self._handle = handle
        self._unanswered_max = unanswered_max
        self._share = share
        self._scheduler = scheduler
        self._turn = None if turns is None else Turn(turns, self.stop)
        self._weigh = weigh
        self._weigh_answer = weigh_answer
        self._sending = sending
        self._times = times or ApiTimes("")
        self.traffic = traffic or ClientTraffic()
        #: Called when a request arrives while earlier ones wait, and at the end: ends their waits.
        self._end_waits = end_waits
        #: Answers in order: ready ones, or futures of them; with the times of their requests.
        self._queue: deque[tuple[_Times, A | asyncio.Future[A | None]]] = deque()
        #: When the handler of the last request was called.
        self._started = 0.0
        self._ended = False
        self._stopping = False
        #: Set when the queue or `_ended` changed; cleared by the waiter.
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._reading = False

    async def run(self) -> None:
        """Serve until the peer ends the stream, it breaks (cancellation or PeerGone), or `stop()`."""
        try:
            async with asyncio.TaskGroup() as group:
                self._reader = group.create_task(self._read())
                await self._write()
        finally:
            self._share.close()
            if self._turn is not None:
                self._turn.give_back()
            for _, answer in self._queue:
                if isinstance(answer, asyncio.Future):
                    answer.cancel()

    def stop(self) -> None:
        """Read no more; answer the requests that were read, without long polling; end."""
        self._stopping = True
        if self._end_waits is not None:
            self._end_waits()
        # Only a pending read is cut off; a request that was read is on its way to its answer.
        if self._reader is not None and self._reading:
            self._reader.cancel()

    async def _read(self) -> None:
        try:
            while not self._stopping:
                self._reading = True
                if self._share.must_wait():
                    await self._share.granted()
                if self._turn is not None and (granted := self._turn.take()) is not None:
                    request = None
                    await granted.wait()
                request = await self._context.read()
                self._reading = False
                if request is aio.EOF:
                    break
                arrived = monotonic()
                answer = await self._start(request)
                if self._turn is not None:
                    self._turn.give_back()
                if self._turn is None or self._turn.is_wanted or isinstance(answer, Awaitable):
                    # Other streams may receive meanwhile. Else it is kept until the next one arrives: to free it
                    # at once gives its pages back to the kernel, and getting them again costs 2 ms of CPU per MB.
                    request = None
                await self._queue_up(answer, arrived)
        except asyncio.CancelledError:
            # Cancelled by `stop()`, this is the clean end; by gRPC, the stream is dead.
            if not self._stopping:
                raise
        finally:
            self._ended = True
            self._changed.set()

    async def _start(self, request: Q | RequestError) -> Maybe[A | None]:
        if isinstance(request, RequestError):
            # The deserializer would not have it, so there is no request to answer: the stream ends with it.
            raise request
        if self._queue and self._end_waits is not None:
            self._end_waits()
        self.traffic.requests += 1
        if self._weigh is not None:
            size = self._weigh(request)
            self.traffic.bytes_in += size
            self._share.received(size)

        def handle() -> Handled[A]:
            self._started = monotonic()
            return self._handle(request)

        answer = await visited(self._scheduler, handle)
        self._share.handled()
        return answer

    async def _queue_up(self, answer: Maybe[A | None], arrived: float) -> None:
        times = _Times(arrived, self._started, monotonic())
        if answer is None:
            self._times.answered_at_once(*times)
            return
        if isinstance(answer, Awaitable):
            self._queue.append((times, asyncio.ensure_future(answer)))
        elif not self._queue:
            await self._send(answer, times, times.handled)
            return
        else:
            self._queue.append((times, answer))
        self._changed.set()
        while len(self._queue) >= self._unanswered_max:
            self._room.clear()
            await self._room.wait()

    async def _write(self) -> None:
        while True:
            if self._queue:
                # Stays in the queue until it is written: that is what "unanswered" counts, and what keeps
                # the reader from writing at the same time.
                times, answer = self._queue[0]
                made = (await answer) if isinstance(answer, asyncio.Future) else answer
                if made is not None:
                    await self._send(made, times, monotonic())
                else:
                    self._observe(times, monotonic(), 0.0)
                self._queue.popleft()
                self._room.set()
            elif self._ended:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    def _observe(self, times: _Times, made: float, polled_s: float) -> None:
        # A fetch knows how long it waited for records; the rest of its time it read them.
        waited_s = 0.0 if self._sending is not None else made - times.handled
        queued_s = times.started - times.arrived
        self._times.answered(queued_s, made - times.started, waited_s, polled_s)

    async def _send(self, answer: A, times: _Times, made: float) -> None:
        """`made` is when the answer was there."""
        self._observe(times, made, 0.0 if self._sending is None else self._sending(answer))
        try:
            await self._send_counted(answer)
        finally:
            self._times.send_s += monotonic() - made

    async def _send_counted(self, answer: A) -> None:
        size = 0 if self._weigh_answer is None else self._weigh_answer(answer)
        self.traffic.bytes_out += size
        if size < WORTH_COUNTING_BYTES:
            await self._write_one(answer)
            return
        with self._share.unsent(size):
            # Others wait for this memory: a peer that does not read in time has to ask again.
            try:
                async with asyncio.timeout(STALL_S):
                    await self._write_one(answer)
            except TimeoutError:
                raise RequestTimedOut(
                    f"{size} bytes of the response were not read for {STALL_S:.0f} s."
                ) from None

    async def _write_one(self, answer: A) -> None:
        try:
            await self._context.write(answer)
        except aio.InternalError:
            # gRPC's only error when the call ended during the write; a cancellation may follow later.
            raise PeerGone from None
