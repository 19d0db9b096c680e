"""Requests that only partition leaders can answer, sent to each leader and retried after elections. [S]

Used by consumer and admin. During an election a partition has no leader, or a stale one: retriable errors are
retried until the timeout, for the partitions that still lack an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from ottla_client.cluster import Cluster
from ottla_client.connection import Broker, exception_of
from ottla_client.errors import CannotConnect, ClientError, UnknownTopicOrPartition
from ottla_client.record import ActiveProducer, OffsetAndTimestamp
from ottla_core.errors import LeaderNotAvailable, RequestError, RequestTimedOut
from ottla_core.ids import NO_EPOCH, TopicPartition
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import transactions_pb2
from ottla_core.ports.clock import Clock

Question = TypeVar("Question")
Answer = TypeVar("Answer")
#: The response of one leader: an answer or an error per partition.
Answers = Iterable[tuple[TopicPartition, Answer | RequestError]]
Producers: TypeAlias = dict[TopicPartition, tuple[ActiveProducer, ...]]

_PAUSE_S = 0.05
#: Partitions per request: far below the broker's limit, and short enough for its event loop.
_PARTITIONS_PER_CALL = 1000


async def list_offsets(
    cluster: Cluster,
    clock: Clock,
    wanted: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    read_committed: bool = False,
    fenced: bool = False,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The offset for each timestamp (-1 latest, -2 earliest, -3 newest record); -1 if no record is that new.

    `fenced`: only leaders of the leader epochs that the client knows may answer.
    """

    async def ask(
        broker: Broker, some: Mapping[TopicPartition, int], left_s: float
    ) -> Answers[OffsetAndTimestamp]:
        request = pb.ListOffsetsRequest(read_committed=read_committed)
        for (topic, partition), timestamp_ms in some.items():
            epoch = cluster.leader_epoch(TopicPartition(topic, partition)) if fenced else NO_EPOCH
            request.queries.add(
                topic=topic, partition=partition, timestamp_ms=timestamp_ms, leader_epoch=epoch
            )
        answer = await cluster.call_at(broker, "ListOffsets", request, left_s)
        return _outcomes(answer.answers, lambda each: OffsetAndTimestamp(each.offset, each.timestamp_ms))

    return await _ask_leaders(cluster, clock, wanted, ask, timeout_s)


async def delete_records(
    cluster: Cluster, clock: Clock, before: Mapping[TopicPartition, int], *, timeout_s: float
) -> dict[TopicPartition, int]:
    """Delete records before these offsets (-1: all). Returns the new first offset of each partition."""

    async def ask(broker: Broker, some: Mapping[TopicPartition, int], left_s: float) -> Answers[int]:
        request = pb.DeleteRecordsRequest(timeout_ms=int(left_s * 1000))
        for (topic, partition), offset in some.items():
            request.partitions.add(topic=topic, partition=partition, offset=offset)
        answer = await cluster.call_at(broker, "DeleteRecords", request, left_s)
        return _outcomes(answer.partitions, lambda each: int(each.low_watermark))

    return await _ask_leaders(cluster, clock, before, ask, timeout_s)


async def describe_producers(
    cluster: Cluster, clock: Clock, partitions: Iterable[TopicPartition], *, timeout_s: float
) -> Producers:
    """The producers that each partition remembers."""

    async def ask(
        broker: Broker, some: Mapping[TopicPartition, None], left_s: float
    ) -> Answers[tuple[ActiveProducer, ...]]:
        request = transactions_pb2.DescribeProducersRequest()
        for topic, partition in some:
            request.topics.add(topic=topic, partitions=[partition])
        answer = await cluster.call_at(broker, "DescribeProducers", request, left_s)
        return _outcomes(answer.partitions, lambda each: tuple(map(_active, each.producers)))

    return await _ask_leaders(cluster, clock, dict.fromkeys(partitions), ask, timeout_s)


async def abort_transaction(
    cluster: Cluster, clock: Clock, partition: TopicPartition, first_offset: int, *, timeout_s: float
) -> None:
    """Write an abort marker for the transaction that begins at this offset."""

    async def ask(broker: Broker, some: Mapping[TopicPartition, int], left_s: float) -> Answers[None]:
        ((tp, offset),) = some.items()
        request = transactions_pb2.AbortTransactionRequest(
            topic=tp.topic, partition=tp.partition, first_offset=offset
        )
        answer = await cluster.call_at(broker, "AbortTransaction", request, left_s)
        return [(tp, exception_of(answer.error) if answer.HasField("error") else None)]

    await _ask_leaders(cluster, clock, {partition: first_offset}, ask, timeout_s)


def _active(each: transactions_pb2.ActiveProducer) -> ActiveProducer:
    first_offset = each.transaction_first_offset
    return ActiveProducer(
        each.producer.id,
        each.producer.epoch,
        each.last_sequence,
        each.last_timestamp_ms,
        each.coordinator_epoch,
        None if first_offset < 0 else first_offset,
    )


def _outcomes(parts: Iterable[Any], read: Callable[[Any], Answer]) -> Answers[Answer]:
    for each in parts:
        yield (
            TopicPartition(each.topic, each.partition),
            exception_of(each.error) if each.HasField("error") else read(each),
        )


async def _ask_leaders(
    cluster: Cluster,
    clock: Clock,
    wanted: Mapping[TopicPartition, Question],
    ask: Callable[[Broker, Mapping[TopicPartition, Question], float], Awaitable[Answers[Answer]]],
    timeout_s: float,
) -> dict[TopicPartition, Answer]:
    """An answer for each partition, or the first error that retries did not fix."""
    deadline = clock.monotonic() + timeout_s
    found: dict[TopicPartition, Answer] = {}
    await _learn(cluster, [tp for tp in wanted if tp.topic not in cluster.topics], timeout_s)
    while True:
        missing = {tp: question for tp, question in wanted.items() if tp not in found}
        errors: dict[TopicPartition, Exception] = {}
        for broker, some in _by_leader(cluster, missing, errors):
            try:
                answers = await ask(broker, some, max(0.001, deadline - clock.monotonic()))
            except (ClientError, RequestError) as error:
                errors.update(dict.fromkeys(some, error))
                continue
            for tp, answer in answers:
                if isinstance(answer, RequestError):
                    errors[tp] = answer
                else:
                    found[tp] = answer
        missing = {tp: question for tp, question in missing.items() if tp not in found}
        if not missing:
            return {tp: found[tp] for tp in wanted}
        for lasting in errors.values():
            if isinstance(lasting, RequestError) and not lasting.retriable:
                raise lasting
        if clock.monotonic() + _PAUSE_S > deadline:
            # No error and no answer: the broker answered for other partitions.
            unanswered = LeaderNotAvailable(f"No broker answered for {next(iter(missing))}.")
            raise next(iter(errors.values()), unanswered)
        await clock.sleep(_PAUSE_S)
        try:
            await _learn(cluster, missing, max(0.001, deadline - clock.monotonic()))
        except (CannotConnect, RequestTimedOut):
            # The last attempt may just have had too little time left: the earlier error says more.
            for before in errors.values():
                raise before from None
            raise


async def _learn(cluster: Cluster, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
    """Refresh their leaders. UnknownTopicOrPartition if a partition does not exist."""
    topics = list(dict.fromkeys(tp.topic for tp in partitions))
    if not topics:
        return
    for error in (await cluster.refresh(topics, timeout_s=timeout_s)).values():
        raise error
    for tp in partitions:
        layout = cluster.topics.get(tp.topic)
        if layout is not None and tp.partition not in layout.partitions:
            last = len(layout.partitions) - 1
            raise UnknownTopicOrPartition(
                f"Topic {tp.topic!r} has partitions 0 to {last}, not {tp.partition}."
            )


def _by_leader(
    cluster: Cluster, wanted: Mapping[TopicPartition, Question], errors: dict[TopicPartition, Exception]
) -> Iterable[tuple[Broker, dict[TopicPartition, Question]]]:
    """Each leader with the partitions for one call to it."""
    grouped: dict[int, list[tuple[TopicPartition, Question]]] = {}
    for tp, question in wanted.items():
        grouped.setdefault(cluster.leader(tp), []).append((tp, question))
    for leader, pairs in grouped.items():
        broker = cluster.broker(leader)
        if broker is None:
            errors.update((tp, LeaderNotAvailable(f"{tp} has no leader right now.")) for tp, _ in pairs)
            continue
        for start in range(0, len(pairs), _PARTITIONS_PER_CALL):
            yield broker, dict(pairs[start : start + _PARTITIONS_PER_CALL])
