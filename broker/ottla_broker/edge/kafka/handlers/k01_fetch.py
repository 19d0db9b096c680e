"""Fetch (1), versions 4-18: read batches, waiting for them if asked to. [S]

Batches go out as they lie on disk: the first may begin before the asked offset, the last may be cut off;
clients skip and drop accordingly. `max_bytes` bounds the answer, each partition's own limit its part, and
the first batch found is sent whole even if it is over both (KIP-74). A fetch that has to wait can be given
up when its client goes.

A fetch over consumer_byte_rate is answered without records, and its connection waits.

Of several entries for one partition the last one counts, as in Kafka.

Fetch sessions (KIP-227) belong to their connection; see `fetch_session`. Where there is no room for one,
the answer carries session id 0 and the client goes on with full fetches.

Versions: 5 adds the log start offset; 7 sessions; 9 fencing by leader epoch (KIP-320); 11 a preferred
replica (KIP-392: from then on followers serve it too, and a leader may name a follower in the client's rack); 12 is
flexible; 13 names topics by id; 15 moves the replica id into a tagged field. Left out: followers (a replica id is
ignored: Ottla's brokers replicate over gRPC), the diverging epoch (only followers ask), the current leader in
errors (KIP-951).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import NamedTuple, TypedDict
from uuid import UUID

from ottla_broker.edge.kafka.decode import Malformed
from ottla_broker.edge.kafka.fetch_session import FIRST_EPOCH, SESSIONLESS_EPOCH, Answers, FetchSession
from ottla_broker.edge.kafka.fetch_wire import (
    LONG_BODY_BYTES,
    SESSIONS_FROM,
    TOPIC_IDS_FROM,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode,
    encode_in_steps,
    parse_in_steps,
)
from ottla_broker.edge.kafka.request import Context, Encoded, Reply, Request, Steps
from ottla_broker.edge.memory import Hold
from ottla_broker.quota import CONSUMER_BYTE_RATE
from ottla_broker.requests import WAIT_S_MAX, Fetched, FetchWant, Maybe
from ottla_broker.service.delayed_fetch import Ask, FetchSteps, Polled
from ottla_broker.steps import PARTITIONS_PER_STEP, Slice, begun, exhaust
from ottla_core.errors import RequestError, UnknownTopicId
from ottla_core.ids import TopicPartition

READ_ONLY = True

#: When memory is short an answer is cut down to this; the first batch is given whole all the same.
_BYTES_LEAST = 1 << 16

#: Entries that are looked at in one slice, at a microsecond each.
_ENTRIES_PER_STEP = 250
_ANSWERS_PER_STEP = 1000

#: More than any response holds.
_BYTES_MOST = 1 << 31

#: Slow readers may hold this many budgets before others get small batches only; while the budget is used up, clients
#: that take nothing are disconnected.
_FULL_TIMES = 1.5


class _Plan(NamedTuple):
    """One fetch on its way: what was asked, and where each partition's answer will come from."""

    context: Context
    version: int
    wanted: FetchRequest
    session: FetchSession | None
    is_incremental: bool
    #: Per topic: its key, and per partition its index and either a place in what is fetched or the refusal.
    places: list[tuple[bytes, list[tuple[int, int | Fetched]]]]
    #: Counts the memory of what is read.
    hold: Hold


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_handle(context, request))


def _handle(context: Context, request: Request) -> Steps:
    version, body = request.version, request.body
    wanted = yield from parse_in_steps(
        body if len(body) <= LONG_BODY_BYTES else memoryview(bytes(body)), version
    )
    is_incremental = wanted.session_epoch not in (FIRST_EPOCH, SESSIONLESS_EPOCH)
    try:
        session = _session(context, version, wanted, is_incremental)
    except RequestError as error:
        return Encoded(encode(version, (), read_committed=False, error_code=context.failed(error)))
    topics = (
        session.topics() if session is not None and is_incremental else (yield from _distinct(wanted.topics))
    )
    plan = _Plan(context, version, wanted, session, is_incremental, [], Hold(context.memory, _FULL_TIMES))
    throttling = context.services.throttling
    if throttling.is_on and (wait_s := throttling.until_room(context.caller, CONSUMER_BYTE_RATE, 0)):
        return _without_records(plan, wait_s)
    wants = yield from _locate(plan, topics)
    refused = len(wants) < sum(len(within) for _, within in plan.places)
    waits = wanted.max_wait_ms > 0 and not refused and plan.hold.wait(len(wants))
    limits = _limits(context, wanted, plan.hold, at_once=not waits)
    if len(wants) > PARTITIONS_PER_STEP:
        return (yield from _in_steps(plan, context.services.records.fetch_in_steps(wants, **limits)))
    fetched = context.services.records.fetch(wants, **limits)
    return exhaust(_answer(plan, fetched)) if isinstance(fetched, list) else _answer_later(plan, fetched)


def _session(
    context: Context, version: int, wanted: FetchRequest, is_incremental: bool
) -> FetchSession | None:
    sessions, by_id = context.fetch_sessions, version >= TOPIC_IDS_FROM
    if is_incremental:
        return sessions.resume(context.fetch_session, wanted, by_id=by_id)
    if context.fetch_session is not None:
        sessions.close(context.fetch_session)
        context.fetch_session = None
    if version >= SESSIONS_FROM and wanted.session_epoch == FIRST_EPOCH:
        context.fetch_session = sessions.open(wanted, by_id=by_id)
    return context.fetch_session


def _distinct(topics: Sequence[FetchTopic]) -> Generator[None, None, Sequence[FetchTopic]]:
    """One entry per partition: the last one, at the place of the first."""
    entries: dict[tuple[bytes, int], FetchPartition] = {}
    count, part = 0, Slice(_ENTRIES_PER_STEP)
    for topic in topics:
        count += len(topic.partitions)
        for each in topic.partitions:
            entries[topic.key, each.partition] = each
            if part.over():
                yield
    if len(entries) == count:
        return topics
    distinct: list[FetchTopic] = []
    for (key, _), each in entries.items():
        if not distinct or distinct[-1].key != key:
            distinct.append(FetchTopic(key, []))
        distinct[-1].partitions.append(each)
        if part.over():
            yield
    return distinct


def _locate(plan: _Plan, topics: Sequence[FetchTopic]) -> Generator[None, None, list[FetchWant]]:
    """What to ask of the service; notes in the plan where each answer goes."""
    wants: list[FetchWant] = []
    part = Slice(_ENTRIES_PER_STEP)
    for topic in topics:
        name = _name_of(plan.context, plan.version, topic.key)
        within: list[tuple[int, int | Fetched]] = []
        for p in topic.partitions:
            if part.over():
                yield
            if name is None:
                within.append((p.partition, Fetched(TopicPartition("", p.partition), UnknownTopicId())))
            else:
                within.append((p.partition, len(wants)))
                tp = TopicPartition(name, p.partition)
                wants.append(FetchWant(tp, p.offset, max(p.max_bytes, 0), p.leader_epoch))
        plan.places.append((topic.key, within))
    return wants


def _name_of(context: Context, version: int, key: bytes) -> str | None:
    if version >= TOPIC_IDS_FROM:
        return context.services.image.names_by_id.get(UUID(bytes=key))
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise Malformed("a topic name is not UTF-8") from error


class _Limits(TypedDict):
    max_wait_s: float
    min_bytes: int
    max_bytes: int
    read_committed: bool
    ask: Ask
    rack: str | None
    polled: Polled


def _limits(context: Context, wanted: FetchRequest, hold: Hold, *, at_once: bool) -> _Limits:
    room = max(context.memory.room, _BYTES_LEAST)
    throttling = context.services.throttling
    if throttling.is_on:
        room = min(room, int(min(throttling.burst(context.caller, CONSUMER_BYTE_RATE), _BYTES_MOST)))
    return {
        "max_wait_s": 0.0 if at_once else min(max(wanted.max_wait_ms, 0) / 1000, WAIT_S_MAX),
        "min_bytes": wanted.min_bytes,
        "max_bytes": max(0, min(wanted.max_bytes, context.config.fetch_max_bytes, room)),
        "read_committed": wanted.read_committed,
        "ask": hold.ask,
        "rack": wanted.rack,
        "polled": hold.polled,
    }


async def _answer_later(plan: _Plan, fetched: Awaitable[list[Fetched]]) -> Reply:
    return exhaust(_answer(plan, await fetched))


def _in_steps(plan: _Plan, steps: FetchSteps) -> Steps:
    """Many partitions: others are served between two slices, and again after waiting."""
    fetched = yield from steps
    if isinstance(fetched, list):
        return (yield from _answer(plan, fetched))
    return _wait(plan, fetched)


async def _wait(plan: _Plan, wait: Callable[[], Awaitable[FetchSteps]]) -> Steps:
    return _in_steps(plan, await wait())


def _answer(plan: _Plan, fetched: list[Fetched]) -> Generator[None, None, Reply]:
    for each in fetched:
        if each.error is not None:
            plan.context.failed(each.error)
    wait_s = _until_allowed(plan.context, fetched)
    if wait_s:
        return _without_records(plan, wait_s)
    answers: Answers = []
    part = Slice(_ANSWERS_PER_STEP)
    for key, within in plan.places:
        of_topic: list[tuple[int, Fetched]] = []
        answers.append((key, of_topic))
        for at in range(0, len(within), _ANSWERS_PER_STEP):
            several = within[at : at + _ANSWERS_PER_STEP]
            of_topic += [
                (index, fetched[place] if isinstance(place, int) else place) for index, place in several
            ]
            if part.over(len(several)):
                yield
    session_id = 0
    if plan.session is not None:
        session_id = plan.session.id
        news = plan.session.news(answers)  # a full response counts as sent, too
        answers = news if plan.is_incremental else answers
    yield
    return Encoded(
        (
            yield from encode_in_steps(
                plan.version, answers, read_committed=plan.wanted.read_committed, session_id=session_id
            )
        ),
        plan.hold,
    )


def _until_allowed(context: Context, fetched: list[Fetched]) -> float:
    """The seconds until consumer_byte_rate allows these records; 0 for now."""
    throttling = context.services.throttling
    size = sum(len(each.records) for each in fetched) if throttling.is_on else 0
    return throttling.until_room(context.caller, CONSUMER_BYTE_RATE, size) if size else 0.0


def _without_records(plan: _Plan, wait_s: float) -> Reply:
    """As Kafka answers a fetch that exceeds the quota: no partitions. A session stays as it was; none is begun."""
    session = plan.session
    if session is not None and not plan.is_incremental:
        plan.context.fetch_sessions.close(session)
        plan.context.fetch_session = session = None
    plan.hold.release()
    session_id = 0 if session is None else session.id
    return Encoded(encode(plan.version, (), read_committed=False, session_id=session_id), wait_s=wait_s)
