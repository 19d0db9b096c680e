"""Produce (0), versions 3-13: append batches to partitions. [S]

The hottest path of the broker: own parser and encoder, records stay views of the receive buffer down to the
write. What a request writes is written when `handle` returns, or keeps its place in the partition's order if its
batches take long to check; only its answer may wait (for that, for acks=all, or for fsync before ack), so the next
request of the connection is handled meanwhile.

acks=0 gets no answer; if such a request fails, the connection is closed, as Kafka does, because that is the
only way to make the producer look for the cause.

Versions: 5 answers the log start offset; 8 explains errors and names bad records (KIP-467); 9 is flexible; 13 names
topics by id (KIP-516). Versions 0-2 carry the old message formats: advertised for librdkafka's sake (see `versions`),
refused when used. Left out: transactions (a transactional id is refused), the current leader in errors
(KIP-951, versions 10+).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from ottla_broker.edge.kafka import codec
from ottla_broker.edge.kafka.decode import Malformed
from ottla_broker.edge.kafka.produce_wire import (
    FLEXIBLE_FROM,
    TOPIC_IDS_FROM,
    ProduceRequest,
    ProduceTopic,
    encode_done,
    encode_one,
    parse,
)
from ottla_broker.edge.kafka.request import WAIT_S_MAX, Context, Disconnect, Encoded, Reply, Request, Steps
from ottla_broker.requests import Appended, Maybe
from ottla_broker.steps import PARTITIONS_PER_STEP, exhaust
from ottla_core.errors import InvalidRecord, InvalidTxnState, RequestError, RequestTimedOut, UnknownTopicId
from ottla_core.ids import TopicPartition

if TYPE_CHECKING:
    from ottla_broker.service.records import RecordService

OVERLAPS = True

#: To append costs some 20 µs for a small batch, and more for a large one.
_PARTITIONS_PER_STEP = PARTITIONS_PER_STEP // 2

#: What became of one partition.
Outcome = Appended | RequestError
#: Place in the outcomes, what to await for it.
Wait = tuple[list[Outcome], int, Awaitable[Appended | None]]
#: Stands in the outcomes until what is awaited takes its place.
_PENDING = RequestTimedOut()


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    wanted = parse(request.body, request.version)
    topics = wanted.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1 and request.version >= FLEXIBLE_FROM:
        return _handle_one(context, request, wanted)
    if sum(len(topic.partitions) for topic in topics) > _PARTITIONS_PER_STEP:
        return _handle_many(context, request)
    return exhaust(_handle_all(context, request, wanted))


def _handle_many(context: Context, request: Request) -> Steps:
    """In slices, from a copy: the receive buffer is used again between two of them."""
    copied = bytes(request.body)
    return _counted(
        context, len(copied), _handle_all(context, request, parse(memoryview(copied), request.version))
    )


def _counted(context: Context, size: int, steps: Steps) -> Steps:
    context.memory.park(size)
    try:
        return (yield from steps)
    finally:
        context.memory.park(-size)


def _handle_one(context: Context, request: Request, wanted: ProduceRequest) -> Maybe[Reply | Steps]:
    """One partition is the common case, and every microsecond here is paid per batch."""
    topic, acks = wanted.topics[0], wanted.acks
    index, records = topic.partitions[0]
    try:
        if not records or wanted.transactional_id is not None:
            return exhaust(_handle_all(context, request, wanted))
        tp = TopicPartition(_name_of(context, request.version, topic), index)
        service = context.services.records
        appended = service.append(tp, records, acks)
        timeout_s = min(max(wanted.timeout_ms, 0) / 1000, WAIT_S_MAX)
        if type(appended) is not Appended:
            pending: list[Outcome] = [_PENDING]
            later = _written_later(service, tp, appended, acks, timeout_s)
            return _answer_later(context, request, wanted, [pending], [(pending, 0, later)])
        if acks == 0:
            return None
        wait = service.acknowledged(tp, appended, acks, timeout_s)
    except RequestError as error:
        return _answer(context, request, wanted, [[error]])
    if wait is not None:
        outcomes: list[list[Outcome]] = [[appended]]
        return _answer_later(context, request, wanted, outcomes, [(outcomes[0], 0, wait)])
    return Encoded((encode_one(request.version, topic.key, index, appended),))


def _handle_all(context: Context, request: Request, wanted: ProduceRequest) -> Steps:
    outcomes: list[list[Outcome]] = []
    waits: list[Wait] = []
    for topic in wanted.topics:
        try:
            name = _name_of(context, request.version, topic)
        except RequestError as error:
            outcomes.append([error] * len(topic.partitions))
            continue
        outcomes.append((yield from _append(context, wanted, name, topic, waits)))
    if waits:
        return _answer_later(context, request, wanted, outcomes, waits)
    return _answer(context, request, wanted, outcomes)


def _name_of(context: Context, version: int, topic: ProduceTopic) -> str:
    if version >= TOPIC_IDS_FROM:
        name = context.services.image.names_by_id.get(UUID(bytes=topic.key))
        if name is None:
            raise UnknownTopicId()
        return name
    try:
        return topic.key.decode()
    except UnicodeDecodeError as error:
        raise Malformed("a topic name is not UTF-8") from error


def _append(
    context: Context, wanted: ProduceRequest, name: str, topic: ProduceTopic, waits: list[Wait]
) -> Generator[None, None, list[Outcome]]:
    service, acks = context.services.records, wanted.acks
    outcomes: list[Outcome] = []
    for number, (index, records) in enumerate(topic.partitions, 1):
        if number % _PARTITIONS_PER_STEP == 0:
            yield
        tp = TopicPartition(name, index)
        try:
            if wanted.transactional_id is not None:
                raise InvalidTxnState(
                    f"Transactional id {wanted.transactional_id!r} has no open transaction: transactions are not "
                    "available on this broker."
                )
            if not records:
                raise InvalidRecord(
                    "A produce request must bring a record batch for each partition it names."
                )
            appended = service.append(tp, records, acks)
            timeout_s = min(max(wanted.timeout_ms, 0) / 1000, WAIT_S_MAX)
            if type(appended) is not Appended:
                later = _written_later(service, tp, appended, acks, timeout_s)
                outcomes.append(_PENDING)
                waits.append((outcomes, len(outcomes) - 1, later))
                continue
            outcomes.append(appended)
            if acks != 0:
                wait = service.acknowledged(tp, appended, acks, timeout_s)
                if wait is not None:
                    waits.append((outcomes, len(outcomes) - 1, wait))
        except RequestError as error:
            outcomes.append(error)
    return outcomes


async def _written_later(
    service: RecordService, tp: TopicPartition, later: Maybe[Appended], acks: int, timeout_s: float
) -> Appended:
    """The outcome of a write whose batches take long to check."""
    appended = await cast(Awaitable[Appended], later)
    wait = service.acknowledged(tp, appended, acks, timeout_s) if acks else None
    if wait is not None:
        await wait
    return appended


async def _answer_later(
    context: Context,
    request: Request,
    wanted: ProduceRequest,
    outcomes: list[list[Outcome]],
    waits: list[Wait],
) -> Reply:
    if len(waits) == 1:
        within, place, wait = waits[0]
        try:
            written = await wait
            if written is not None:
                within[place] = written
        except RequestError as error:
            within[place] = error
        return _answer(context, request, wanted, outcomes)
    results = await asyncio.gather(*(wait for _, _, wait in waits), return_exceptions=True)
    for (within, place, _), result in zip(waits, results, strict=True):
        if isinstance(result, RequestError | Appended):
            within[place] = result
        elif result is not None:
            raise result
    return _answer(context, request, wanted, outcomes)


def _answer(
    context: Context, request: Request, wanted: ProduceRequest, outcomes: list[list[Outcome]]
) -> Reply:
    done: list[tuple[ProduceTopic, list[Appended]]] = []
    for topic, each in zip(wanted.topics, outcomes, strict=True):
        appended = [outcome for outcome in each if type(outcome) is Appended]
        if len(appended) < len(each):
            return _answer_with_errors(context, request, wanted, outcomes)
        done.append((topic, appended))
    return None if wanted.acks == 0 else Encoded((encode_done(request.version, done),))


def _answer_with_errors(
    context: Context, request: Request, wanted: ProduceRequest, outcomes: list[list[Outcome]]
) -> Reply:
    topics: list[dict[str, Any]] = []
    for topic, each in zip(wanted.topics, outcomes, strict=True):
        answer: dict[str, Any] = {
            "partition_responses": [
                _partition_answer(context, index, outcome)
                for (index, _), outcome in zip(topic.partitions, each, strict=True)
            ]
        }
        if request.version >= TOPIC_IDS_FROM:
            answer["topic_id"] = UUID(bytes=topic.key)
        else:
            answer["name"] = topic.key.decode()
        topics.append(answer)
    if wanted.acks == 0:
        raise Disconnect("a produce request without acknowledgement failed")
    return Encoded((codec.encode_response(request.api, request.version, {"responses": topics}),))


def _partition_answer(context: Context, index: int, outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, RequestError):
        return {
            "index": index,
            "error_code": context.failed(outcome),
            "error_message": outcome.message,
            "record_errors": [
                {"batch_index": at, "batch_index_error_message": message}
                for at, message in outcome.record_errors
            ],
            "base_offset": -1,
        }
    return {
        "index": index,
        "base_offset": outcome.base_offset,
        "log_append_time": outcome.log_append_time_ms,
        "log_start_offset": outcome.log_start_offset,
    }
