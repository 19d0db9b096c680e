"""Produce (0), versions 3-13: append batches to partitions. [S]

The hottest path of the broker: own parser and encoder, records stay views of the receive buffer down to the
write. What a request writes is written when `handle` returns, or keeps its place in the partition's order if its
batches take long to check; only its answer may wait (for that, for acks=all, or for fsync before ack), so the next
request of the connection is handled meanwhile. Many partitions, and transactions, are handled in steps from a copy, and
the next request after the last of them.

acks=0 gets no answer; if such a request fails, the connection is closed, as Kafka does, because that is the
only way to make the producer look for the cause.

Versions: 5 answers the log start offset; 8 explains errors and names bad records (KIP-467); 9 is flexible; 13 names
topics by id (KIP-516). Versions 0-2 carry the old message formats: advertised for librdkafka's sake (see `versions`),
refused when used. From 12 on the leader adds the partition to the transaction (KIP-890). Left out: the current leader
in errors (KIP-951, versions 10+).
"""

from __future__ import annotations

from collections.abc import Awaitable
from itertools import islice
from typing import Any, TypeVar
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
from ottla_broker.edge.kafka.request import Context, Disconnect, Encoded, Reply, Request, Steps
from ottla_broker.requests import Appended, Maybe, Outcome, Write
from ottla_broker.service.producing import WRITES_PER_STEP
from ottla_core.errors import RequestError, UnknownTopicId
from ottla_core.ids import TopicPartition

OVERLAPS = True

_ADDS_PARTITIONS_FROM = 12

T = TypeVar("T")


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    wanted = parse(request.body, request.version)
    if wanted.transactional_id is not None or wanted.partitions > WRITES_PER_STEP:
        # From a copy: the receive buffer is used again between two steps.
        return _in_steps(context, request, bytes(request.body))
    try:
        outcomes = context.services.producing.produce(
            _writes(context, request, wanted), acks=wanted.acks, timeout_s=wanted.timeout_ms / 1000
        )
    except RequestError as error:
        return _refuse_all(context, request, wanted, error)
    if isinstance(outcomes, list):
        return _answer(context, request, wanted, outcomes)
    return _answer_later(context, request, wanted, outcomes)


def _in_steps(context: Context, request: Request, copied: bytes) -> Steps:
    context.memory.park(len(copied))
    try:
        wanted = parse(memoryview(copied), request.version)
        outcomes = yield from context.services.producing.produce_in_steps(
            _writes(context, request, wanted),
            acks=wanted.acks,
            timeout_s=wanted.timeout_ms / 1000,
            transactional_id=wanted.transactional_id,
            adds_partitions=request.version >= _ADDS_PARTITIONS_FROM,
        )
    except RequestError as error:
        return _refuse_all(context, request, wanted, error)
    finally:
        context.memory.park(-len(copied))
    if isinstance(outcomes, list):
        return _answer(context, request, wanted, outcomes)
    return _answer_later(context, request, wanted, outcomes)


def _writes(context: Context, request: Request, wanted: ProduceRequest) -> list[Write]:
    writes: list[Write] = []
    for topic in wanted.topics:
        name, refusal = "", None
        if request.version < TOPIC_IDS_FROM:
            try:
                name = topic.key.decode()
            except UnicodeDecodeError as error:
                raise Malformed("a topic name is not UTF-8") from error
        elif (found := context.services.image.names_by_id.get(UUID(bytes=topic.key))) is not None:
            name = found
        else:
            refusal = UnknownTopicId()
        for index, records in topic.partitions:
            writes.append(Write(TopicPartition(name, index), records, refusal))
    return writes


async def _answer_later(
    context: Context, request: Request, wanted: ProduceRequest, outcomes: Awaitable[list[Outcome]]
) -> Reply:
    return _answer(context, request, wanted, await outcomes)


def _refuse_all(context: Context, request: Request, wanted: ProduceRequest, error: RequestError) -> Reply:
    return _answer(context, request, wanted, [error] * wanted.partitions)


def _answer(context: Context, request: Request, wanted: ProduceRequest, outcomes: list[Outcome]) -> Reply:
    """`outcomes` has one per partition, in the order of the request."""
    version, topics, appended = request.version, wanted.topics, []
    for outcome in outcomes:
        if type(outcome) is not Appended:
            return _answer_with_errors(context, request, wanted, outcomes)
        appended.append(outcome)
    if wanted.acks == 0:
        return None
    if len(appended) == len(topics) == 1 and version >= FLEXIBLE_FROM:
        # The common case, and every microsecond here is paid per batch.
        topic = topics[0]
        return Encoded((encode_one(version, topic.key, topic.partitions[0][0], appended[0]),))
    return Encoded((encode_done(version, _by_topic(topics, appended)),))


def _by_topic(topics: list[ProduceTopic], outcomes: list[T]) -> list[tuple[ProduceTopic, list[T]]]:
    rest = iter(outcomes)
    return [(topic, list(islice(rest, len(topic.partitions)))) for topic in topics]


def _answer_with_errors(
    context: Context, request: Request, wanted: ProduceRequest, outcomes: list[Outcome]
) -> Reply:
    topics: list[dict[str, Any]] = []
    for topic, each in _by_topic(wanted.topics, outcomes):
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
    if isinstance(outcome, Appended):
        return {
            "index": index,
            "base_offset": outcome.base_offset,
            "log_append_time": outcome.log_append_time_ms,
            "log_start_offset": outcome.log_start_offset,
        }
    if not isinstance(outcome, RequestError):
        raise outcome
    return {
        "index": index,
        "error_code": context.failed(outcome, "Produce"),
        "error_message": outcome.message,
        "record_errors": [
            {"batch_index": at, "batch_index_error_message": message} for at, message in outcome.record_errors
        ],
        "base_offset": -1,
    }
