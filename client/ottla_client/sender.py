"""Sends batches from the accumulator to the brokers, and handles responses. [S]

The lower half of the producer: it owns the streams, the timers and the wait for room; `producer_machine` decides
what to send and what a response means. One pump, scheduled after every change, does the work, so that it
never runs inside a caller's `send`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ottla_client.accumulator import Accumulator, Batch, Lane, Outcome
from ottla_client.cluster import Cluster, TopicLayout
from ottla_client.connection import Broker, exception_of
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
#: Pause after an errand that failed or found no leader.
_ERRAND_PAUSE_S = 0.1


class Topic:
    """A topic with a known layout: its lanes by partition, and the input of partitioners."""

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
        transactional_id: str = "",
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._machine = machine
        self._clock = clock
        self._acks = acks
        self._transactional_id = transactional_id
        self._request_timeout_s = request_timeout_s
        #: Held while accumulator and machine change, if threads append records (the blocking producer).
        self.lock: AbstractContextManager[Any] = nullcontext()
        #: Empty unless running, so that one lookup checks both.
        self.topics: dict[str, Topic] = {}
        self._streams = Streams(cluster, self._new_stream, request_timeout_s)
        self._pump = Pump(clock, self._do_all)
        #: Schedule the pump: something may have changed.
        self.schedule = self._pump.schedule
        #: Callers that wait for room in the buffer, first come first served.
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._errands: set[str] = set()

    # ------------------------------------------------------------------ start and stop

    @property
    def running(self) -> bool:
        return self._pump.running

    def listen(self) -> None:
        self._cluster.listen(self._learnt)

    def start(self) -> None:
        """Called once the cluster answers."""
        self._pump.start()

    async def stop(self, timeout_s: float) -> None:
        """Send all records and wait for them. Records that are unsettled after the timeout fail with ClientClosed."""
        try:
            if self.running:
                async with asyncio.timeout(timeout_s):
                    await self.flush()
                # With acks=0 there is no acknowledgement, so wait until the broker has read the streams.
                await asyncio.gather(*(stream.finish(_FINISH_TIMEOUT_S) for stream in self._streams))
        except TimeoutError:
            log.error("The producer was closed after %g s; not all records were acknowledged", timeout_s)
        finally:
            self._pump.stop()
            self.topics.clear()
            closed = ClientClosed("The producer was closed before the record was acknowledged.")
            with self.lock:
                for batch in list(self._accumulator.unsettled.values()):
                    self._accumulator.settle(batch, Outcome(error=closed))
            self._wake_waiters()

    async def flush(self) -> None:
        """Send all buffered records; return when they are settled."""
        with self.lock:
            self._accumulator.flush()
            waiting = list(self._accumulator.unsettled.values())
        self.schedule()
        if not waiting:
            return
        left = len(waiting)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def one_less(_batch: Batch) -> None:
            nonlocal left
            left -= 1
            if not left and not done.done():
                done.set_result(None)

        with self.lock:
            for batch in waiting:
                batch.watch(one_less)
        await done

    def hasten(self, lane: Lane) -> None:
        """Send the lane's open batch without linger."""
        with self.lock:
            self._accumulator.make_due(lane)
        self.schedule()

    async def room(self, left_s: float) -> None:
        """Wait until a batch is settled. BufferExhausted if none is in time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        # Send lingering batches: nothing else would make room.
        with self.lock:
            self._accumulator.flush()
        self.schedule()
        try:
            async with asyncio.timeout(left_s):
                await waiter
        except TimeoutError:
            raise BufferExhausted(
                "buffer_memory is used up and no batch was acknowledged within max_block_ms. "
                "Check that the brokers are up."
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
        with self.lock:
            return self._do_all_alone(now)

    def _do_all_alone(self, now: float) -> list[float | None]:
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
            transactional_id=self._transactional_id,
            clock=self._clock,
            background=self._cluster.background,
            on_answer=self._answered,
            on_lost=self._stream_lost,
        )

    def _answered(self, batch: Batch, answer: pb.PartitionProduced) -> None:
        with self.lock:
            if answer.HasField("error"):
                self._machine.refused(batch, exception_of(answer.error), self._clock.monotonic())
                if batch.outcome is not None:
                    _log_failure(batch)
            else:
                self._machine.acknowledged(batch, answer.base_offset, answer.log_append_time_ms)
        self.schedule()

    def _stream_lost(self, stream: ProduceStream, requests: list[list[Batch]]) -> None:
        self._streams.forget(stream)
        now = self._clock.monotonic()
        with self.lock:
            for batches in requests:
                for batch in batches:
                    self._machine.lost(batch, now)
        self.schedule()

    # ------------------------------------------------------------------ requests of the machine

    def _run_errand(self, name: str, errand: Callable[[], Any]) -> None:
        """Run it in the background, one of each kind at a time."""
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
            raise exception_of(answer.error)
        with self.lock:
            self._machine.identified(answer.producer_id, answer.producer_epoch)

    async def _refresh_stale(self) -> None:
        topics = list(self._machine.stale_topics)
        await self._cluster.refresh(topics, timeout_s=self._request_timeout_s, doubtful=True)
        for topic in topics:
            self._machine.stale_topics.pop(topic, None)
        # If a leader is still unknown, ask again after a pause.
        await self._clock.sleep(_ERRAND_PAUSE_S)

    def _learnt(self, layout: TopicLayout) -> None:
        with self.lock:
            topic = self.topics.setdefault(layout.name, Topic())
            # A topic recreated with fewer partitions loses lanes; their pending batches have no leader.
            gone = max(0, len(topic.lanes) - len(layout.leaders))
            topic.lanes = [
                self._accumulator.lane(TopicPartition(layout.name, partition))
                for partition in layout.partitions
            ]
            topic.partitions, topic.available = layout.partitions, layout.available
            self._machine.leaders_changed(layout.name, (*layout.leaders, *[NO_BROKER] * gone))
        self.schedule()


def _log_failure(batch: Batch) -> None:
    error = batch.outcome.error if batch.outcome else None
    if error is not None:
        log.error("%d records for %s were not written: %s", batch.count, batch.lane.tp, error)
