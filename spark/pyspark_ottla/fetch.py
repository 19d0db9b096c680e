"""The batches of one partition between two offsets, for a Spark task. [S]

One Fetch stream to the leader, or to the replica in the reader's rack that the leader has named (KIP-392). While the
task converts one response to columns, the next is already in flight: its request is sent as soon as the offset after
the last batch is known, and gRPC's own thread receives the response. The event loop runs only while `chunks` waits for
a response, so there is no additional thread beside Spark's. Loop and connection belong to the worker (`connections`),
because most tasks are short.

If the leader moves or restarts, the fetch continues with the new leader, once that has confirmed that its log contains
the records that were read (KIP-320); if it does not, `Lost` is raised. An error is raised after `timeout_s` without a
record of progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from grpc import aio

from ottla_client.cluster import Cluster
from ottla_client.connection import exception_of
from ottla_client.errors import CannotConnect, ClientError
from ottla_client.leaders import list_offsets
from ottla_client.security import PLAINTEXT, Security
from ottla_core.errors import OffsetOutOfRange, RequestError, RequestTimedOut, UnknownTopicOrPartition
from ottla_core.ids import NO_BROKER, NO_EPOCH, TopicPartition
from ottla_core.pb import broker_pb2 as pb
from ottla_core.real.clock import RealClock
from ottla_core.records.batch import BatchHeader, complete_batches
from pyspark_ottla.connections import borrowed
from pyspark_ottla.options import FETCH_BYTES, REQUEST_TIMEOUT_MS
from pyspark_ottla.plan import OffsetRange

_MAX_WAIT_MS = 500
_PAUSE_S = 0.1
#: How long to wait for a topic that existed when the query was planned and is now unknown.
_UNKNOWN_TOPIC_S = 3.0
#: A broker learns within milliseconds that a topic was created again.
_SECOND_LOOK_S = 1.0
#: Empty long polls, although the whole range is committed, after which the rest is taken as compacted away. A single
#: empty poll may come from a segment that was being replaced.
_EMPTY_POLLS = 3
#: A cancelled read ends within one iteration of the loop.
_HANG_UP_S = 1.0
_STREAM_OVER = (aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError)


class Expired(Exception):
    """The offset to read no longer exists; `oldest` is the first one that does."""

    def __init__(self, tp: TopicPartition, offset: int, oldest: int) -> None:
        super().__init__(f"Offset {offset} of {tp} has expired: the earliest offset is {oldest}.")
        self.oldest = oldest


class Lost(Exception):
    """The records to read no longer exist, nor do later ones of the range."""


# Without a generated repr: `asyncio.Runner` calls repr on every result (through `signal`), and for megabytes that took
# four times as long as reading them.
@dataclass(frozen=True, slots=True, repr=False)
class Chunk:
    """The result of one fetch: bytes, and the batches in them that are visible to the reader."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]


class PartitionFetch:
    def __init__(
        self,
        bootstrap: str,
        wanted: OffsetRange,
        *,
        read_committed: bool,
        timeout_s: float,
        request_timeout_s: float = REQUEST_TIMEOUT_MS / 1000,
        fetch_bytes: int = FETCH_BYTES,
        rack: str = "",
        security: Security = PLAINTEXT,
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._tp = wanted.tp
        self._position = wanted.start
        self._end = wanted.end
        self._topic_id = wanted.topic_id
        self._read_committed = read_committed
        self._timeout_s = timeout_s
        self._request_timeout_s = min(request_timeout_s, timeout_s)
        self._fetch_bytes = fetch_bytes
        self._rack = rack
        #: The replica to read from instead of the leader.
        self._replica: int = NO_BROKER
        #: Leader epoch of the last batch that was read, and the leader epoch in which it was validated.
        self._last_epoch = NO_EPOCH
        self._validated_in = NO_EPOCH
        self._clock = RealClock()
        self._cluster: Cluster
        self._call: Any = None
        #: The response in flight.
        self._coming: asyncio.Task[Any] | None = None
        self._correlation = 0

    def chunks(self) -> Iterator[Chunk]:
        """Batches until the end offset. Raises Expired, Lost, RequestError or ClientError."""
        with borrowed(self._bootstrap, self._timeout_s, self._security) as connection:
            self._cluster = connection.cluster
            try:
                connection.run(self._open())
                while self._position < self._end:
                    yield connection.run(self._next())
                connection.run(self._verify())
            finally:
                connection.run(self._close())

    async def chunks_over(self, cluster: Cluster) -> AsyncIterator[Chunk]:
        """The same in the caller's loop, over its connection."""
        self._cluster = cluster
        try:
            await self._open()
            while self._position < self._end:
                yield await self._next()
        finally:
            await self._close()

    # ------------------------------------------------------------------ in the loop

    async def _open(self) -> None:
        topic = self._tp.topic
        was_known = topic in self._cluster.topics
        await self._cluster.layout(topic, auto_create=False, timeout_s=self._timeout_s)
        if was_known and (self._is_another_topic() or self._cluster.leader(self._tp) == NO_BROKER):
            # An earlier task of this worker read the layout.
            await self._cluster.refresh([topic], timeout_s=self._timeout_s)
        if self._is_another_topic():
            # The broker that answered may have stale metadata.
            await self._clock.sleep(_SECOND_LOOK_S)
            await self._cluster.refresh([self._tp.topic], timeout_s=self._timeout_s, doubtful=True)
        self._check_topic()

    async def _verify(self) -> None:
        """Raise Lost if the topic was recreated while it was read.

        A fetch names a topic, not its id. Ids are never reused: if the id is the same before and after all fetches,
        they read that topic. The leader is asked, because its metadata describes the topic that it serves.
        """
        if not self._topic_id:
            return
        request = pb.MetadataRequest(topics=[self._tp.topic])
        leader = self._cluster.broker(self._cluster.leader(self._tp))
        try:
            if leader is None:
                raise CannotConnect(f"{self._tp} has no leader right now.")
            answer = await self._cluster.call_at(leader, "Metadata", request, self._timeout_s)
        except (CannotConnect, RequestTimedOut):
            answer = await self._cluster.call("Metadata", request, timeout_s=self._timeout_s)
        for topic in answer.topics:
            if topic.HasField("error") or topic.topic_id != self._topic_id:
                raise Lost(f"Topic {self._tp.topic!r} was deleted while {self._tp} was read.")

    def _is_another_topic(self) -> bool:
        layout = self._cluster.topics.get(self._tp.topic)
        return bool(self._topic_id) and layout is not None and layout.topic_id != self._topic_id

    def _check_topic(self) -> None:
        if self._is_another_topic():
            raise Lost(f"Topic {self._tp.topic!r} was deleted and created again before {self._tp} was read.")

    async def _close(self) -> None:
        coming = self._coming
        self._hang_up()
        if coming is not None:
            # The loop stops after this; the task has to end before.
            await asyncio.wait((coming,), timeout=_HANG_UP_S)

    async def _next(self) -> Chunk:
        """The next response with complete batches; sends the following request before it returns."""
        began = self._clock.monotonic()
        problem: Exception | None = None
        empty_polls = short_polls = 0
        while True:
            if self._clock.monotonic() - began > self._patience_s(problem):
                raise problem or RequestTimedOut(
                    f"No record of {self._tp} from offset {self._position} on arrived within {self._timeout_s:g} s."
                )
            try:
                got = await self._answer()
            except OffsetOutOfRange as error:
                self._hang_up()
                if self._replica != NO_BROKER:
                    # A follower may lag; the leader knows.
                    self._replica, problem = NO_BROKER, error
                    await self._clock.sleep(_PAUSE_S)
                    continue
                oldest = await self._oldest()
                if oldest > self._position:
                    raise Expired(self._tp, self._position, oldest) from None
                raise Lost(
                    f"Partition {self._tp} ends before offset {self._position}: records at its end were lost."
                ) from None
            except (RequestError, ClientError) as error:
                if isinstance(error, RequestError) and not error.retriable:
                    raise
                problem = error
                self._replica = NO_BROKER
                self._hang_up()
                await self._clock.sleep(_PAUSE_S)
                await self._refresh()
                continue
            if got.HasField("preferred_replica"):
                self._hang_up()
                self._replica = got.preferred_replica
                continue
            batches = list(complete_batches(got.records))
            if not batches:
                limit = got.last_stable_offset if self._read_committed else got.high_watermark
                if limit < self._end:
                    short_polls += 1
                    if short_polls % _EMPTY_POLLS == 0:
                        await self._check_end()
                    continue
                empty_polls += 1
                if empty_polls < _EMPTY_POLLS:
                    continue  # the long poll ended; the range is committed, so its records will arrive
                self._position = self._end
                return Chunk(b"", [])
            visible = self._visible(batches, got)
            self._position = max(self._position, batches[-1][1].next_offset)
            self._last_epoch = batches[-1][1].leader_epoch
            if self._position < self._end:
                await self._ask()
            return Chunk(got.records, visible)

    def _patience_s(self, problem: Exception | None) -> float:
        if isinstance(problem, UnknownTopicOrPartition):
            return min(_UNKNOWN_TOPIC_S, self._timeout_s)
        return self._timeout_s

    async def _answer(self) -> pb.FetchedPartition:
        if self._coming is None:
            await self._ask()
        coming, self._coming = self._coming, None
        if coming is None:
            raise RequestTimedOut(f"{self._tp} has no leader right now.")
        done, _ = await asyncio.wait((coming,), timeout=self._request_timeout_s)
        if not done:
            coming.cancel()
            raise RequestTimedOut(
                f"The leader of {self._tp} did not answer within {self._request_timeout_s:g} s."
            )
        try:
            answer = coming.result()
        except (*_STREAM_OVER, asyncio.CancelledError):
            answer = aio.EOF
        if answer is aio.EOF:
            raise RequestTimedOut(f"The leader of {self._tp} closed the stream.")
        if answer.HasField("error"):
            raise exception_of(answer.error)
        if len(answer.partitions) != 1:
            raise RequestTimedOut(
                f"The leader of {self._tp} sent a response that does not match the request."
            )
        got = answer.partitions[0]
        if got.HasField("error"):
            raise exception_of(got.error)
        return got  # type: ignore[no-any-return]

    async def _ask(self) -> None:
        """Send the request for the current position and start to wait for its response."""
        epoch = self._cluster.leader_epoch(self._tp)
        if self._call is None:
            await self._validate(epoch)
            source = self._cluster.leader(self._tp) if self._replica == NO_BROKER else self._replica
            broker = self._cluster.broker(source)
            if broker is None:
                return
            self._call = broker.log.Fetch()
        self._correlation += 1
        request = pb.FetchRequest(
            correlation=self._correlation,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            read_committed=self._read_committed,
            rack=self._rack,
            partitions=[
                pb.FetchPartition(
                    topic=self._tp.topic,
                    partition=self._tp.partition,
                    offset=self._position,
                    max_bytes=self._fetch_bytes,
                    leader_epoch=epoch,
                )
            ],
        )
        call = self._call
        try:
            await call.write(request)
        except _STREAM_OVER:
            pass  # the read fails too, and its error is handled
        self._coming = asyncio.get_running_loop().create_task(call.read())
        # One iteration of the loop passes the read to gRPC, whose thread then receives while the loop does not run.
        await self._clock.sleep(0)

    async def _validate(self, epoch: int) -> None:
        """After a change of the leader epoch: raise Lost if the new leader's log lacks records that were read."""
        if not NO_EPOCH < self._last_epoch < epoch or epoch == self._validated_in:
            return
        leader = self._cluster.broker(self._cluster.leader(self._tp))
        if leader is None:
            raise RequestTimedOut(f"{self._tp} has no leader right now.")
        request = pb.OffsetsForLeaderEpochRequest()
        request.queries.add(
            topic=self._tp.topic,
            partition=self._tp.partition,
            current_leader_epoch=epoch,
            leader_epoch=self._last_epoch,
        )
        answer = await self._cluster.call_at(leader, "OffsetsForLeaderEpoch", request, self._timeout_s)
        for found in answer.answers:
            if found.HasField("error"):
                raise exception_of(found.error)
            if found.leader_epoch != self._last_epoch or found.end_offset < self._position:
                raise Lost(
                    f"The log of {self._tp} no longer contains all records before offset {self._position}: they "
                    "were lost in an unclean leader election, or have expired."
                )
        self._validated_in = epoch

    def _hang_up(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh([self._tp.topic], timeout_s=self._timeout_s)
        except (RequestError, ClientError):
            return  # the next attempt fails in the same way, and its time-out applies
        self._check_topic()

    async def _check_end(self) -> None:
        """Raise Lost if the log ends before the planned end.

        The end was committed when the query was planned. A follower may lag, and a new leader learns the high watermark
        late; but a leader names its latest offset only when it knows it. A leader that is cut off from the cluster
        does not know that it has a successor: the other brokers do.
        """
        epoch = self._cluster.leader_epoch(self._tp)
        await self._cluster.refresh([self._tp.topic], timeout_s=self._timeout_s, doubtful=True)
        self._check_topic()
        if self._cluster.leader_epoch(self._tp) != epoch:
            self._hang_up()
            return
        found = await list_offsets(
            self._cluster, self._clock, {self._tp: -1}, timeout_s=self._timeout_s, fenced=True
        )
        latest = found[self._tp].offset
        if latest < self._end:
            raise Lost(
                f"Partition {self._tp} ends at offset {latest}, before offset {self._end}, which existed when the "
                "query was planned: records at its end were lost."
            )

    async def _oldest(self) -> int:
        found = await list_offsets(self._cluster, self._clock, {self._tp: -2}, timeout_s=self._timeout_s)
        return found[self._tp].offset

    def _visible(
        self, batches: list[tuple[int, BatchHeader]], got: pb.FetchedPartition
    ) -> list[tuple[int, BatchHeader]]:
        """Without control batches, batches outside the range and, with read_committed, aborted transactions.

        The response lists the aborted transactions that overlap it, by producer and first offset; each ends with
        the producer's next control batch.
        """
        aborted = sorted((each.first_offset, each.producer_id) for each in got.aborted)
        aborting: set[int] = set()
        chosen: list[tuple[int, BatchHeader]] = []
        for at, header in batches:
            if self._read_committed and header.is_transactional:
                while aborted and aborted[0][0] <= header.last_offset:
                    aborting.add(aborted.pop(0)[1])
                if header.is_control:
                    aborting.discard(header.producer_id)
                elif header.producer_id in aborting:
                    continue
            if (
                not header.is_control
                and header.next_offset > self._position
                and header.base_offset < self._end
            ):
                chosen.append((at, header))
        return chosen
