"""Fetching for a consumer: streams to leaders, offset lookups, and the pump that drives both. [S]

`consumer_machine` decides what to fetch and keeps the results; `fetched` decodes them. The consumer
assigns, seeks and takes on the machine, and calls `schedule` when the pump may have work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ottla_client.cluster import Cluster, TopicLayout
from ottla_client.connection import Broker, exception_of
from ottla_client.consumer_machine import COMMITTED, ConsumerMachine, Lookup, Validation, Want
from ottla_client.errors import ClientError
from ottla_client.fetch_stream import FetchLimits, FetchStream
from ottla_client.fetched import aborted_pairs
from ottla_client.leaders import list_offsets
from ottla_client.pump import Pump
from ottla_client.record import OffsetAndMetadata, OffsetAndTimestamp
from ottla_client.streams import Streams
from ottla_core.errors import LeaderNotAvailable, RequestError
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.pb import broker_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

_REFRESH_PAUSE_S = 0.05

#: Committed offsets of the group; None for partitions without one.
FindCommitted = Callable[
    [Iterable[TopicPartition]], Awaitable[dict[TopicPartition, OffsetAndMetadata | None]]
]


class Fetcher:
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        machine: ConsumerMachine,
        limits: FetchLimits,
        request_timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._machine = machine
        self._limits = limits
        self._request_timeout_s = request_timeout_s
        #: Set by `GroupReader` if the consumer has a group.
        self.find_committed: FindCommitted | None = None
        # A broker may hold a fetch for max_wait_ms; the request timeout starts after that.
        self._streams = Streams(cluster, self._new_stream, request_timeout_s + limits.max_wait_ms / 1000)
        self._pump = Pump(clock, self._do_all)
        #: Schedule the pump: something may have changed.
        self.schedule = self._pump.schedule
        #: Set when records may be available.
        self.changed = asyncio.Event()
        self._refreshing = False

    @property
    def running(self) -> bool:
        return self._pump.running

    def start(self) -> None:
        """Called once the cluster answers."""
        self._pump.start()

    def stop(self) -> None:
        self._pump.stop()
        self.changed.set()

    def listen(self) -> None:
        self._cluster.listen(self._learnt)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(
            self._cluster,
            self._clock,
            {TopicPartition(*tp): timestamp for tp, timestamp in wanted.items()},
            timeout_s=self._request_timeout_s,
            read_committed=self._limits.read_committed,
        )

    async def wait_for_change(self, left_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(left_s):
                await self.changed.wait()
        except TimeoutError:
            raise TimeoutError(f"Timed out while waiting for {what}.") from None
        self.changed.clear()

    # ------------------------------------------------------------------ the pump

    def _do_all(self, now: float) -> list[float | None]:
        self._streams.break_overdue(now)
        for lookups in self._by_broker(self._machine.lookups(now)):
            self._cluster.background.spawn(self._look_up(lookups), "offset lookup")
        for leader, some in self._unvalidated(now):
            self._cluster.background.spawn(self._validate(leader, some), "position validation")
        for leader, wants in self._machine.plan(now, self._streams.outstanding).items():
            stream = self._streams.to(leader)
            if stream is None:
                for want in wants:
                    self._machine.lost(want, now)
            else:
                stream.send(wants)
        # Last: the steps above find partitions without a leader.
        if self._machine.stale_topics and not self._refreshing:
            self._refreshing = True
            self._cluster.background.spawn(self._refresh_stale(), "metadata")
        return [self._machine.wakes_at(now), *self._streams.overdue_at()]

    def _new_stream(self, broker: Broker) -> FetchStream:
        return FetchStream(
            broker,
            limits=self._limits,
            clock=self._clock,
            background=self._cluster.background,
            on_answer=self._fetched,
            on_done=self._fetch_done,
            on_lost=self._stream_lost,
        )

    def _fetched(self, want: Want, got: pb.FetchedPartition, error: RequestError | None) -> None:
        self._machine.fetched(
            want,
            error=error,
            data=got.records,
            aborted=aborted_pairs(got.aborted),
            high_watermark=got.high_watermark,
            now=self._clock.monotonic(),
            preferred_replica=got.preferred_replica if got.HasField("preferred_replica") else NO_BROKER,
        )

    def _fetch_done(self) -> None:
        self.changed.set()
        self.schedule()

    def _stream_lost(self, stream: FetchStream, requests: list[list[Want]]) -> None:
        self._streams.forget(stream)
        now = self._clock.monotonic()
        for wants in requests:
            for want in wants:
                self._machine.lost(want, now)
        self.schedule()

    def _by_broker(self, lookups: Iterable[Lookup]) -> Iterable[list[Lookup]]:
        """One request to the coordinator, and one per leader: a slow broker delays only its own partitions."""
        asked: dict[int | None, list[Lookup]] = {}
        for lookup in lookups:
            whom = None if lookup.timestamp_ms == COMMITTED else self._cluster.leader(lookup.tp)
            asked.setdefault(whom, []).append(lookup)
        return asked.values()

    async def _look_up(self, lookups: list[Lookup]) -> None:
        committed = lookups[0].timestamp_ms == COMMITTED
        ask = self._look_up_committed if committed else self._look_up_times
        try:
            await ask({lookup.tp: lookup for lookup in lookups})
        except (ClientError, RequestError) as error:
            now = self._clock.monotonic()
            for lookup in lookups:
                self._machine.lookup_failed(lookup, error, now)
        self._fetch_done()

    async def _look_up_committed(self, lookups: dict[TopicPartition, Lookup]) -> None:
        found = {} if self.find_committed is None else await self.find_committed(lookups)
        for tp, lookup in lookups.items():
            committed = found.get(tp)
            if committed is None:
                self._machine.nothing_committed(lookup)
            else:
                self._machine.found(lookup, committed.offset, committed.leader_epoch)

    async def _look_up_times(self, lookups: dict[TopicPartition, Lookup]) -> None:
        found = await self.list_offsets({tp: lookup.timestamp_ms for tp, lookup in lookups.items()})
        for tp, each in found.items():
            self._machine.found(lookups[tp], each.offset)

    def _unvalidated(self, now: float) -> Iterable[tuple[int, list[Validation]]]:
        by_leader: dict[int, list[Validation]] = {}
        for each in self._machine.validations(now):
            by_leader.setdefault(each.leader, []).append(each)
        return by_leader.items()

    async def _validate(self, leader: int, asked: list[Validation]) -> None:
        """Ask the leader where the epochs of the positions ended (KIP-320)."""
        request = pb.OffsetsForLeaderEpochRequest()
        for each in asked:
            request.queries.add(
                topic=each.tp.topic,
                partition=each.tp.partition,
                current_leader_epoch=each.leader_epoch,
                leader_epoch=each.epoch,
            )
        try:
            broker = self._cluster.broker(leader)
            if broker is None:
                raise LeaderNotAvailable(f"Broker {leader} is not in the metadata.")
            answer = await self._cluster.call_at(
                broker, "OffsetsForLeaderEpoch", request, self._request_timeout_s
            )
            if len(answer.answers) != len(asked):
                raise LeaderNotAvailable(f"Broker {leader} answered for other partitions than requested.")
        except (ClientError, RequestError) as error:
            for each in asked:
                self._machine.validation_failed(each, error, self._clock.monotonic())
        else:
            for each, got in zip(asked, answer.answers, strict=True):
                if got.HasField("error"):
                    self._machine.validation_failed(each, exception_of(got.error), self._clock.monotonic())
                elif (
                    sentence := self._machine.validated(each, got.leader_epoch, got.end_offset)
                ) is not None:
                    log.warning("%s", sentence)
        self._fetch_done()

    async def _refresh_stale(self) -> None:
        topics = list(self._machine.stale_topics)
        try:
            refused = await self._cluster.refresh(topics, timeout_s=self._request_timeout_s, doubtful=True)
            now = self._clock.monotonic()
            for topic, error in refused.items():
                self._machine.topic_unknown(topic, error, now)
        except (ClientError, RequestError) as error:
            log.warning("metadata: %s; trying again", error)
        # Pause after the response, so that an unknown leader is not requested in a tight loop.
        await self._clock.sleep(_REFRESH_PAUSE_S)
        for topic in topics:
            self._machine.stale_topics.pop(topic, None)
        self._refreshing = False
        self._fetch_done()

    def _learnt(self, layout: TopicLayout) -> None:
        self._machine.leaders_changed(layout.name, layout.leaders, layout.epochs)
        self.schedule()
