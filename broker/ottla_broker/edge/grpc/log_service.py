"""`ottla.v1.Log`: records in and out, translated to the record service. [S]

One object per process; a stream's own state lives in its `AnsweredStream`. Every refusal is part of an
answer, so one bad request never ends a stream that carries good ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from ottla_broker.caller import Caller
from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge.deleting import each_deleted
from ottla_broker.edge.grpc.answered_stream import AnsweredStream, Handled, PeerGone
from ottla_broker.edge.grpc.callers import Enter, client_id_of
from ottla_broker.edge.grpc.meter import Meter
from ottla_broker.edge.grpc.probe import GrpcProbe
from ottla_broker.edge.grpc.refusal import Refusals, abort, guarded
from ottla_broker.edge.grpc.share import Share
from ottla_broker.edge.grpc.translation import error_message, fetched_partition
from ottla_broker.edge.grpc.turns import Turns
from ottla_broker.edge.grpc.visits import next_slice
from ottla_broker.edge.memory import Hold, Memory
from ottla_broker.log.producers import ProducerDescription
from ottla_broker.quota import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from ottla_broker.requests import (
    Appended,
    EpochEnd,
    Fetched,
    FetchWant,
    FoundOffset,
    Maybe,
    Outcome,
    ProducerIdentity,
    Write,
)
from ottla_broker.scheduler import Scheduler
from ottla_broker.service.producing import WRITES_PER_STEP, Producing
from ottla_broker.service.throttling import Throttling
from ottla_broker.steps import Steps
from ottla_core.errors import InvalidRequest, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.pb import broker_pb2 as pb

#: Slow readers may hold this many budgets before others get small batches only. More than on the Kafka edge, because
#: streams are few and a slow one is not cut off: a reader that takes its responses must still get large batches.
_FULL_TIMES = 3.0
#: A fetch answer holds its records until it is written, so few of them may wait for a slow reader.
FETCHES_UNANSWERED_MAX = 4
#: The records of one answer: below 32 MiB with what protobuf puts around them, which is what clients take at least.
_ANSWER_BYTES_MAX = 32 * 1024 * 1024 - 64 * 1024
#: A fetch gets at least so much, and at least one batch, however many answers wait for slow readers.
_ANSWER_BYTES_MIN = 64 * 1024
#: A client that asks for an hour of waiting gets a minute: a waiter must not outlive its reason for long.
_WAIT_MAX_S = 60.0
#: Looks at offsets in one turn of the loop, at 5 µs each.
_QUERIES_PER_TURN = 128


class Records(Protocol):
    """What this edge needs of the record service."""

    def fetch(
        self,
        wants: list[FetchWant],
        *,
        max_wait_s: float,
        min_bytes: int,
        max_bytes: int,
        read_committed: bool = False,
        ask: Callable[[int, int], int] | None = None,
        rack: str | None = None,
        polled: Callable[[float], None] | None = None,
    ) -> Maybe[list[Fetched]]: ...

    def epoch_end(self, tp: TopicPartition, epoch: int, current_leader_epoch: int) -> EpochEnd: ...

    def list_offset(
        self, tp: TopicPartition, timestamp_ms: int, *, leader_epoch: int = -1, read_committed: bool = False
    ) -> Maybe[FoundOffset]: ...

    def delete_records(self, tp: TopicPartition, offset: int, timeout_s: float) -> Maybe[int]: ...

    def init_producer_id(self) -> Awaitable[ProducerIdentity]: ...

    def producers(self, tp: TopicPartition) -> list[ProducerDescription]: ...


class LogServices(Protocol):
    """The services object, as far as this service uses it."""

    @property
    def records(self) -> Records: ...

    @property
    def producing(self) -> Producing: ...

    @property
    def caller(self) -> Caller: ...

    @property
    def throttling(self) -> Throttling: ...


class LogService:
    def __init__(
        self,
        enter: Enter[LogServices],
        config: GrpcEdgeConfig,
        probe: GrpcProbe,
        refusals: Refusals,
        memory: Memory,
        turns: Turns,
        scheduler: Scheduler,
    ) -> None:
        self._enter = enter
        self._config = config
        self.probe = probe
        self.refusals = refusals
        self._memory = memory
        self._turns = turns
        self.scheduler = scheduler
        #: Streams being served, in order of opening.
        self._streams: dict[int, AnsweredStream[Any, Any]] = {}
        self._stopping = False

    def stop(self) -> None:
        """Let every stream answer what it has read, then end; new ones end at once."""
        self._stopping = True
        for stream in list(self._streams.values()):
            stream.stop()

    # ------------------------------------------------------------------ streams

    async def produce(self, _requests: Any, context: Any) -> None:
        try:
            services = self._enter(context)
        except RequestError as error:
            await abort(context, error)
        producing, meter = services.producing, Meter(services, PRODUCER_BYTE_RATE)
        stream = AnsweredStream[pb.ProduceRequest, pb.ProduceResponse](
            context,
            lambda request: meter.charged(request.ByteSize(), lambda: self._produce(producing, request)),
            times=self.probe.api("produce"),
            traffic=self.probe.connected(client_id_of(context)),
            unanswered_max=self._config.stream_requests_max,
            share=Share(self._memory),
            scheduler=self.scheduler,
            turns=self._turns,
            weigh=pb.ProduceRequest.ByteSize,
        )
        await self._serve("produce", stream, context)

    async def fetch(self, _requests: Any, context: Any) -> None:
        try:
            services = self._enter(context)
        except RequestError as error:
            await abort(context, error)
        records, meter = services.records, Meter(services, CONSUMER_BYTE_RATE)
        waiting: list[_LongPoll] = []
        #: Answers that are made and not being written yet, by identity, with the memory they are counted in.
        held: dict[int, Hold] = {}

        def sending(answer: pb.FetchResponse) -> float:
            hold = held.pop(id(answer), None)
            if hold is None:
                return 0.0
            hold.release()
            return hold.polled_s

        def end_waits() -> None:
            for poll in waiting:
                poll.end_waiting()

        def fetch(request: pb.FetchRequest) -> Maybe[pb.FetchResponse | None]:
            waiting[:] = [poll for poll in waiting if not poll.done]
            return meter.measured(
                lambda: self._fetch(records, request, waiting, held), pb.FetchResponse.ByteSize
            )

        stream = AnsweredStream[pb.FetchRequest, pb.FetchResponse](
            context,
            fetch,
            times=self.probe.api("fetch"),
            traffic=self.probe.connected(client_id_of(context)),
            unanswered_max=FETCHES_UNANSWERED_MAX,
            share=Share(self._memory),
            scheduler=self.scheduler,
            weigh_answer=pb.FetchResponse.ByteSize,
            end_waits=end_waits,
            sending=sending,
        )
        await self._serve("fetch", stream, context)

    async def _serve(self, method: str, stream: AnsweredStream[Any, Any], context: Any) -> None:
        self._streams[id(stream)] = stream
        self.probe.stream_opened(method)
        if self._stopping:
            stream.stop()
        refusal: RequestError | None = None
        try:
            await stream.run()
        except* PeerGone:
            pass
        except* RequestError as group:
            # A message that its deserializer would not touch: nothing after it can be trusted to line up.
            refusal = next(error for error in _leaves(group) if isinstance(error, RequestError))
        except* Exception as group:
            refusal = self.refusals.of(next(iter(_leaves(group))), f"a {method} stream")
        finally:
            del self._streams[id(stream)]
            self.probe.stream_closed(method)
            self.probe.disconnected(stream.traffic)
        if refusal is not None:
            await abort(context, refusal)

    # ------------------------------------------------------------------ produce

    def _produce(self, producing: Producing, request: pb.ProduceRequest) -> Handled[pb.ProduceResponse]:
        writes = [Write(TopicPartition(w.topic, w.partition), w.records) for w in request.partitions]
        if request.transactional_id or len(writes) > WRITES_PER_STEP:
            return self._produce_in_steps(producing, request, writes)
        try:
            outcomes = producing.produce(writes, acks=request.acks, timeout_s=request.timeout_ms / 1000)
        except RequestError as error:
            return self._produce_refused(request, error)
        return (
            self._produced(request, outcomes)
            if isinstance(outcomes, list)
            else self._produced_later(request, outcomes)
        )

    def _produce_in_steps(
        self, producing: Producing, request: pb.ProduceRequest, writes: list[Write]
    ) -> Steps[Maybe[pb.ProduceResponse | None]]:
        try:
            outcomes = yield from producing.produce_in_steps(
                writes,
                acks=request.acks,
                timeout_s=request.timeout_ms / 1000,
                transactional_id=request.transactional_id or None,
                adds_partitions=True,
            )
        except RequestError as error:
            return self._produce_refused(request, error)
        yield None
        return (
            self._produced(request, outcomes)
            if isinstance(outcomes, list)
            else self._produced_later(request, outcomes)
        )

    async def _produced_later(
        self, request: pb.ProduceRequest, outcomes: Awaitable[list[Outcome]]
    ) -> pb.ProduceResponse | None:
        return self._produced(request, await outcomes)

    def _produced(self, request: pb.ProduceRequest, outcomes: list[Outcome]) -> pb.ProduceResponse | None:
        """`outcomes` has one per partition, in the order of the request."""
        answer = pb.ProduceResponse(correlation=request.correlation)
        errors: list[str] = []
        for wanted, outcome in zip(request.partitions, outcomes, strict=True):
            produced = answer.partitions.add(topic=wanted.topic, partition=wanted.partition)
            if type(outcome) is Appended:
                produced.base_offset = outcome.base_offset
                produced.log_append_time_ms = outcome.log_append_time_ms
                produced.log_start_offset = outcome.log_start_offset
            else:
                errors.append(self._refuse(produced, cast(Exception, outcome)))
        self.probe.answered("produce", errors)
        # acks=0 asks for no response; a refusal is sent all the same, because nothing else would show it.
        return answer if request.acks or errors else None

    def _refuse(self, produced: pb.PartitionProduced, error: Exception) -> str:
        refusal = self.refusals.of(error, f"a write to {produced.topic}-{produced.partition}")
        produced.error.CopyFrom(error_message(refusal))
        produced.base_offset = -1
        for index, message in refusal.record_errors:
            produced.record_errors.add(index=index, message=message)
        return refusal.name

    def _produce_refused(self, request: pb.ProduceRequest, error: RequestError) -> pb.ProduceResponse:
        self.probe.answered("produce", (error.name,))
        return pb.ProduceResponse(correlation=request.correlation, error=error_message(error))

    # ------------------------------------------------------------------ fetch

    def _fetch(
        self, records: Records, request: pb.FetchRequest, waiting: list[_LongPoll], held: dict[int, Hold]
    ) -> Maybe[pb.FetchResponse | None]:
        wants = [
            FetchWant(TopicPartition(ask.topic, ask.partition), ask.offset, ask.max_bytes, ask.leader_epoch)
            for ask in request.partitions
        ]
        if len({want.tp for want in wants}) < len(wants):
            return self._fetch_refused(request, InvalidRequest("The fetch names a partition more than once."))
        # Little memory left makes small answers, not waiting readers.
        room = max(self._memory.room, _ANSWER_BYTES_MIN)
        max_bytes = min(request.max_bytes, _ANSWER_BYTES_MAX, room)
        hold = Hold(self._memory, _FULL_TIMES)

        def look(max_wait_s: float) -> Maybe[list[Fetched]]:
            return records.fetch(
                wants,
                max_wait_s=max_wait_s,
                min_bytes=min(request.min_bytes, max_bytes),
                max_bytes=max_bytes,
                read_committed=request.read_committed,
                ask=hold.ask,
                rack=request.rack or None,
                polled=hold.polled,
            )

        def made(found: list[Fetched]) -> pb.FetchResponse:
            answer = self._fetched(request, found)
            held[id(answer)] = hold
            return answer

        may_wait = request.max_wait_ms > 0 and hold.wait(len(wants))
        try:
            found = look(min(request.max_wait_ms / 1000, _WAIT_MAX_S) if may_wait else 0.0)
        except Exception as error:
            return self._fetch_refused(request, error)
        if isinstance(found, list):
            return made(found)
        poll = _LongPoll(found, look)
        waiting.append(poll)
        return self._fetched_later(request, poll, made)

    async def _fetched_later(
        self, request: pb.FetchRequest, poll: _LongPoll, made: Callable[[list[Fetched]], pb.FetchResponse]
    ) -> pb.FetchResponse:
        try:
            return made(await poll.result())
        except Exception as error:
            return self._fetch_refused(request, error)

    def _fetched(self, request: pb.FetchRequest, found: list[Fetched]) -> pb.FetchResponse:
        self.probe.answered("fetch", [each.error.name for each in found if each.error is not None])
        return pb.FetchResponse(
            correlation=request.correlation, partitions=[fetched_partition(each) for each in found]
        )

    def _fetch_refused(self, request: pb.FetchRequest, error: Exception) -> pb.FetchResponse:
        refusal = self.refusals.of(error, "a fetch")
        self.probe.answered("fetch", (refusal.name,))
        return pb.FetchResponse(correlation=request.correlation, error=error_message(refusal))

    # ------------------------------------------------------------------ unary calls

    @guarded
    async def list_offsets(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:
        records = self._enter(context).records
        response = pb.ListOffsetsResponse()
        for number, query in enumerate(request.queries, 1):
            if number % _QUERIES_PER_TURN == 0:
                await next_slice(self.scheduler)
            answer = response.answers.add(topic=query.topic, partition=query.partition)
            try:
                found = records.list_offset(
                    TopicPartition(query.topic, query.partition),
                    query.timestamp_ms,
                    leader_epoch=query.leader_epoch,
                    read_committed=request.read_committed,
                )
                if not isinstance(found, FoundOffset):
                    found = await found
            except RequestError as error:
                answer.error.CopyFrom(error_message(error))
                answer.offset = answer.timestamp_ms = answer.leader_epoch = -1
            else:
                answer.offset = found.offset
                answer.timestamp_ms = found.timestamp_ms
                answer.leader_epoch = found.leader_epoch
        return response

    @guarded
    async def offsets_for_leader_epoch(
        self, request: pb.OffsetsForLeaderEpochRequest, context: Any
    ) -> pb.OffsetsForLeaderEpochResponse:
        records = self._enter(context).records
        response = pb.OffsetsForLeaderEpochResponse()
        for number, query in enumerate(request.queries, 1):
            if number % _QUERIES_PER_TURN == 0:
                await next_slice(self.scheduler)
            answer = response.answers.add(topic=query.topic, partition=query.partition)
            try:
                end = records.epoch_end(
                    TopicPartition(query.topic, query.partition),
                    query.leader_epoch,
                    query.current_leader_epoch,
                )
            except RequestError as error:
                answer.error.CopyFrom(error_message(error))
                answer.leader_epoch = answer.end_offset = -1
            else:
                answer.leader_epoch, answer.end_offset = end.leader_epoch, end.end_offset
        return response

    @guarded
    async def delete_records(
        self, request: pb.DeleteRecordsRequest, context: Any
    ) -> pb.DeleteRecordsResponse:
        delete = self._enter(context).records.delete_records
        wanted = [(TopicPartition(each.topic, each.partition), each.offset) for each in request.partitions]
        outcomes = await each_deleted(delete, wanted, request.timeout_ms / 1000)
        response = pb.DeleteRecordsResponse()
        for (tp, _), outcome in zip(wanted, outcomes, strict=True):
            answer = response.partitions.add(topic=tp.topic, partition=tp.partition, low_watermark=-1)
            if isinstance(outcome, RequestError):
                answer.error.CopyFrom(error_message(outcome))
            else:
                answer.low_watermark = outcome
        return response

    @guarded
    async def init_producer_id(
        self, request: pb.InitProducerIdRequest, context: Any
    ) -> pb.InitProducerIdResponse:
        try:
            if request.transactional_id:
                raise InvalidRequest("A transactional producer calls Transactions.InitProducer.")
            identity = await self._enter(context).records.init_producer_id()
        except RequestError as error:
            return pb.InitProducerIdResponse(error=error_message(error), producer_id=-1, producer_epoch=-1)
        return pb.InitProducerIdResponse(
            producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
        )


class _LongPoll:
    """A fetch that waits, and can be asked to wait no longer."""

    def __init__(self, found: Awaitable[list[Fetched]], ask: Callable[[float], Maybe[list[Fetched]]]) -> None:
        self._task: asyncio.Future[list[Fetched]] = asyncio.ensure_future(found)
        self._ask = ask
        self._wait_ended = False

    @property
    def done(self) -> bool:
        return self._task.done()

    def end_waiting(self) -> None:
        if not self._task.done():
            self._wait_ended = True
            self._task.cancel()

    async def result(self) -> list[Fetched]:
        try:
            return await self._task
        except asyncio.CancelledError:
            if not self._wait_ended:
                self._task.cancel()
                raise
        # The same question again, without waiting: what is there now is the answer.
        found = self._ask(0.0)
        return found if isinstance(found, list) else await found


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[Exception]:
    found: list[Exception] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found.extend(_leaves(error))
        elif isinstance(error, Exception):
            found.append(error)
    return found or [InvalidRequest("The stream broke.")]
