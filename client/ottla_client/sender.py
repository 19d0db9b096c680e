"""Batches from the accumulator to the brokers, and what comes back. [S]

The lower half of the producer: it owns the streams, the timers and the waiting for room; what to send and what an
answer means is `producer_machine`'s. One pump, scheduled whenever something has changed, moves everything, so that it
never runs inside a caller's `send`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from ottla_client.accumulator import Accumulator, Batch, Lane, Outcome
from ottla_client.cluster import Cluster, TopicLayout
from ottla_client.connection import Broker, told
from ottla_client.errors import BufferExhausted, ClientClosed, ClientError
from ottla_client.produce_stream import ProduceStream
from ottla_client.producer_machine import ProducerMachine
from ottla_client.pump import Pump
from ottla_client.streams import Streams
from ottla_core.errors import RequestError
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.pb import broker_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

_FINISH_TIMEOUT_S = 5.0
#: After an errand that failed, or brought no leader: not at once again.
_ERRAND_PAUSE_S = 0.1


class Topic:
    """A topic whose layout is known: its lanes by partition, and what a partitioner wants to know."""

    __slots__ = ("available", "lanes", "partitions")

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.partitions = range(0)
        self.available: tuple[int, ...] = ()


class Sender:
    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        machine: ProducerMachine,
        clock: Clock,
        *,
        acks: int,
        request_timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._machine = machine
        self._clock = clock
        self._acks = acks
        self._request_timeout_s = request_timeout_s
        #: Empty unless running, so that one look tells a caller both.
        self.topics: dict[str, Topic] = {}
        self._streams = Streams(cluster, self._new_stream, request_timeout_s)
        self._pump = Pump(clock, self._do_all)
        #: Ask for the pump: something may have changed.
        self.schedule = self._pump.schedule
        #: Who waits for room in the buffer, first come first served.
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._errands: set[str] = set()

    # ------------------------------------------------------------------ life

    @property
    def running(self) -> bool:
        return self._pump.running

    def listen(self) -> None:
        self._cluster.listen(self._learnt)

    def start(self) -> None:
        """Once the cluster answers."""
        self._pump.start()

    async def stop(self, timeout_s: float) -> None:
        """Send and wait for all. What is not settled by then fails with ClientClosed."""
        try:
            if self.running:
                async with asyncio.timeout(timeout_s):
                    await self.flush()
                # With acks=0 nobody has said yet that it arrived.
                await asyncio.gather(*(stream.finish(_FINISH_TIMEOUT_S) for stream in self._streams))
        except TimeoutError:
            log.error("The producer was closed after %g s; not all was acknowledged", timeout_s)
        finally:
            self._pump.stop()
            self.topics.clear()
            closed = ClientClosed("The producer was closed before the record was acknowledged.")
            for batch in list(self._accumulator.unsettled.values()):
                self._accumulator.settle(batch, Outcome(error=closed))
            self._wake_waiters()

    async def flush(self) -> None:
        """Send all that waits now; return when it is settled."""
        self._accumulator.flush()
        self.schedule()
        waiting = list(self._accumulator.unsettled.values())
        if not waiting:
            return
        left = len(waiting)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def one_less(_batch: Batch) -> None:
            nonlocal left
            left -= 1
            if not left and not done.done():
                done.set_result(None)

        for batch in waiting:
            batch.watch(one_less)
        await done

    def hasten(self, lane: Lane) -> None:
        """Do not linger with what is open in the lane."""
        self._accumulator.make_due(lane)
        self.schedule()

    async def room(self, left_s: float) -> None:
        """Wait until some batch is settled. BufferExhausted if none is in time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        # What lingers must go: nothing else would ever make room.
        self._accumulator.flush()
        self.schedule()
        try:
            async with asyncio.timeout(left_s):
                await waiter
        except TimeoutError:
            raise BufferExhausted(
                "buffer_memory is used up and no batch was acknowledged within max_block_ms. Are the brokers up?"
            ) from None
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake_waiters(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ the pump

    def _do_all(self, now: float) -> list[float | None]:
        self._machine.expire(now)
        self._streams.break_overdue(now)
        self._machine.limit_requests(self._cluster.produce_bytes_max)
        for send in self._machine.drain(now):
            stream = self._streams.to(send.leader)
            if stream is None:
                for batch in send.batches:
                    self._machine.lost(batch, now)
            else:
                stream.send(send.batches)
        if self._machine.wants_identity:
            self._run_errand("identity", self._fetch_identity)
        if self._machine.stale_topics:
            self._run_errand("metadata", self._refresh_stale)
        if self._accumulator.freed_bytes:
            self._accumulator.freed_bytes = 0
            self._wake_waiters()
        return [self._machine.wakes_at(), *self._streams.overdue_at()]

    def _new_stream(self, broker: Broker) -> ProduceStream:
        return ProduceStream(
            broker,
            acks=self._acks,
            timeout_ms=int(self._request_timeout_s * 1000),
            clock=self._clock,
            background=self._cluster.background,
            on_answer=self._answered,
            on_lost=self._stream_lost,
        )

    def _answered(self, batch: Batch, answer: pb.PartitionProduced) -> None:
        if answer.HasField("error"):
            self._machine.refused(batch, told(answer.error), self._clock.monotonic())
            if batch.outcome is not None:
                _log_failure(batch)
        else:
            self._machine.acknowledged(batch, answer.base_offset, answer.log_append_time_ms)
        self.schedule()

    def _stream_lost(self, stream: ProduceStream, requests: list[list[Batch]]) -> None:
        self._streams.forget(stream)
        now = self._clock.monotonic()
        for batches in requests:
            for batch in batches:
                self._machine.lost(batch, now)
        self.schedule()

    # ------------------------------------------------------------------ what the machine asks for

    def _run_errand(self, name: str, errand: Callable[[], Any]) -> None:
        """In the background, one of each kind at a time."""
        if name in self._errands:
            return

        async def run() -> None:
            try:
                await errand()
            except (ClientError, RequestError) as error:
                log.warning("%s: %s; trying again", name, error)
                await self._clock.sleep(_ERRAND_PAUSE_S)
            finally:
                self._errands.discard(name)
                self.schedule()

        self._errands.add(name)
        self._cluster.background.spawn(run(), name)

    async def _fetch_identity(self) -> None:
        answer = await self._cluster.call("InitProducerId", pb.InitProducerIdRequest())
        if answer.HasField("error"):
            raise told(answer.error)
        self._machine.identified(answer.producer_id, answer.producer_epoch)

    async def _refresh_stale(self) -> None:
        topics = list(self._machine.stale_topics)
        await self._cluster.refresh(topics, timeout_s=self._request_timeout_s, doubtful=True)
        for topic in topics:
            self._machine.stale_topics.pop(topic, None)
        # A leader that is still unknown is asked for again, but not at once.
        await self._clock.sleep(_ERRAND_PAUSE_S)

    def _learnt(self, layout: TopicLayout) -> None:
        topic = self.topics.setdefault(layout.name, Topic())
        # Made anew with fewer partitions, a topic loses lanes; what still waits in those has nobody to go to.
        gone = max(0, len(topic.lanes) - len(layout.leaders))
        topic.lanes = [
            self._accumulator.lane(TopicPartition(layout.name, partition)) for partition in layout.partitions
        ]
        topic.partitions, topic.available = layout.partitions, layout.available
        self._machine.leaders_changed(layout.name, (*layout.leaders, *[NO_BROKER] * gone))
        self.schedule()


def _log_failure(batch: Batch) -> None:
    error = batch.outcome.error if batch.outcome else None
    if error is not None:
        log.error("%d records for %s were not written: %s", batch.count, batch.lane.tp, error)
