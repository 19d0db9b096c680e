"""One produce request: an outcome per write, verification before the first append, slices, waits that run together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from ottla_broker.event_loop import in_turns
from ottla_broker.requests import WAIT_S_MAX, Appended, Maybe, Outcome, Write
from ottla_broker.service.producing import WRITES_PER_STEP, Producing, Verified
from ottla_broker.steps import exhaust
from ottla_core.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTxnState,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicId,
)
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Buffer


def appended(offset: int) -> Appended:
    return Appended(offset, offset, -1, 0, 0)


class Writer:
    """Partitions in memory: the offset of a write is its partition's index, plus 1000 for each write before."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.timeouts: list[float] = []
        #: Partitions that fail, whose batches take long to check, and whose commit has to be awaited.
        self.errors: dict[int, Exception] = {}
        self.long: dict[int, asyncio.Future[Appended]] = {}
        self.commits: dict[int, asyncio.Future[None]] = {}

    def append(
        self,
        tp: TopicPartition,
        records: Buffer,
        acks: int,
        check_transaction: Callable[[], None] | None = None,
    ) -> Maybe[Appended]:
        if tp.partition in self.errors:
            raise self.errors[tp.partition]
        self.written.append(tp.partition)
        return self.long.get(tp.partition) or appended(tp.partition)

    def acknowledged(
        self, tp: TopicPartition, appended: Appended, acks: int, timeout_s: float
    ) -> Awaitable[None] | None:
        self.timeouts.append(timeout_s)
        return self.commits.get(tp.partition)


def writes(*partitions: int, records: bytes = b"batch") -> list[Write]:
    return [Write(TopicPartition("t", partition), records) for partition in partitions]


def at_once(writer: Writer, wanted: Sequence[Write], acks: int = -1) -> list[Outcome]:
    outcomes = Producing(writer).produce(wanted, acks=acks, timeout_s=1.0)
    assert isinstance(outcomes, list)
    return outcomes


def test_each_write_has_its_own_outcome() -> None:
    writer, gone, bug = Writer(), NotLeaderOrFollower(), KeyError("a bug")
    writer.errors = {1: gone, 3: bug}
    unknown = Write(TopicPartition("", 9), b"batch", UnknownTopicId())
    outcomes = at_once(writer, [*writes(0, 1, 2, 3), unknown, *writes(4, records=b"")])
    assert outcomes[:5] == [appended(0), gone, appended(2), bug, unknown.refusal]
    assert isinstance(outcomes[5], InvalidRecord)
    assert writer.written == [0, 2]


@pytest.mark.parametrize("acks", [2, -2])
def test_odd_acks_refuse_the_whole_request(acks: int) -> None:
    writer = Writer()
    with pytest.raises(InvalidRequiredAcks):
        Producing(writer).produce(writes(0), acks=acks, timeout_s=1.0)
    with pytest.raises(InvalidRequiredAcks):
        exhaust(Producing(writer).produce_in_steps(writes(0), acks=acks, timeout_s=1.0))
    assert writer.written == []


def test_without_acks_no_acknowledgement_is_looked_for() -> None:
    writer = Writer()
    assert at_once(writer, writes(0, 1), acks=0) == [appended(0), appended(1)]
    assert writer.timeouts == []


@pytest.mark.parametrize(("asked", "granted"), [(-1.0, 0.0), (30.0, 30.0), (1e6, WAIT_S_MAX)])
def test_a_wait_has_a_bound(asked: float, granted: float) -> None:
    writer = Writer()
    Producing(writer).produce(writes(0), acks=1, timeout_s=asked)
    assert writer.timeouts == [granted]


@pytest.mark.parametrize("count", [1, 3])
async def test_acknowledgements_and_long_checks_are_awaited(count: int) -> None:
    writer, loop = Writer(), asyncio.get_running_loop()
    writer.commits = {0: loop.create_future(), 3: loop.create_future()}
    writer.long = {1: loop.create_future()}
    outcomes = Producing(writer).produce(writes(0, 1, 2, 3)[:count], acks=-1, timeout_s=1.0)
    assert not isinstance(outcomes, list)
    collecting = asyncio.ensure_future(outcomes)
    await asyncio.sleep(0)
    assert not collecting.done()
    late = RequestTimedOut()
    writer.commits[0].set_exception(late)
    writer.long[1].set_result(appended(77))
    assert await collecting == [late, appended(77), appended(2)][:count]


async def test_a_bug_in_a_wait_is_an_outcome_too() -> None:
    writer, bug = Writer(), KeyError("a bug")
    writer.commits = {0: asyncio.get_running_loop().create_future()}
    writer.commits[0].set_exception(bug)
    outcomes = Producing(writer).produce(writes(0), acks=-1, timeout_s=1.0)
    assert not isinstance(outcomes, list) and await outcomes == [bug]


def test_many_writes_are_sliced() -> None:
    writer = Writer()
    steps = Producing(writer).produce_in_steps(writes(*range(900)), acks=1, timeout_s=1.0)
    before = 0
    for pause in steps:
        assert pause is None
        assert len(writer.written) - before <= WRITES_PER_STEP
        before = len(writer.written)
    assert writer.written == list(range(900))


# ---------------------------------------------------------------------- before the first append


async def test_nothing_is_appended_before_the_transaction_is_verified() -> None:
    writer, verdicts = Writer(), asyncio.get_running_loop().create_future()
    refusal = InvalidTxnState()

    async def verify(transactional_id: str, wanted: Sequence[Write], adds_partitions: bool) -> Verified:
        assert transactional_id == "me" and len(wanted) == 3 and adds_partitions
        verdict = await verdicts
        return [each._replace(refusal=error) for each, error in zip(wanted, verdict, strict=True)]

    producing = asyncio.ensure_future(
        in_turns(
            Producing(writer, verify).produce_in_steps(
                writes(0, 1, 2), acks=1, timeout_s=1.0, transactional_id="me", adds_partitions=True
            )
        )
    )
    for _ in range(5):
        await asyncio.sleep(0)
    assert writer.written == [] and not producing.done()
    verdicts.set_result([None, refusal, None])
    assert await producing == [appended(0), refusal, appended(2)]
    assert writer.written == [0, 2]


async def test_a_verification_that_fails_fails_the_request() -> None:
    writer = Writer()

    async def verify(transactional_id: str, wanted: Sequence[Write], adds_partitions: bool) -> Verified:
        raise RequestTimedOut("The coordinator did not answer.")

    steps = Producing(writer, verify).produce_in_steps(
        writes(0), acks=1, timeout_s=1.0, transactional_id="me"
    )
    with pytest.raises(RequestTimedOut):
        await in_turns(steps)
    assert writer.written == []


async def test_a_verification_ends_with_its_client() -> None:
    verdicts = asyncio.get_running_loop().create_future()
    steps = Producing(Writer(), lambda *_: verdicts).produce_in_steps(
        writes(0), acks=1, timeout_s=1.0, transactional_id="me"
    )
    assert next(steps) is verdicts
    steps.close()
    assert verdicts.cancelled()


def test_without_a_coordinator_there_is_no_transaction() -> None:
    writer = Writer()
    steps = Producing(writer).produce_in_steps(writes(0, 1), acks=1, timeout_s=1.0, transactional_id="me")
    outcomes = exhaust(steps)
    assert isinstance(outcomes, list) and all(isinstance(each, InvalidTxnState) for each in outcomes)
    assert writer.written == []
