"""The decisions of exactly-once writes, and the driver's five steps against a model of the brokers.

The model crashes drivers and tasks at random awaits, keeps zombies of both running, and replays batches as Spark does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_client.prepared import PreparedTransaction
from ottla_client.transaction_admin import TransactionListing
from ottla_core.errors import InvalidProducerIdMapping, InvalidTxnState, ProducerFenced, RequestTimedOut
from pyspark_ottla.decision_log import Stored, partition_of
from pyspark_ottla.decisions import (
    Decision,
    DecisionProblem,
    attempt_id,
    batch_of,
    batch_sink,
    decode,
    encode,
    is_decided,
    leftovers,
    missing,
    named_sink,
    plan_abort,
    plan_commit,
    stream_sink,
)
from pyspark_ottla.settle import Settlement, Step


def random_part(text: str) -> str:
    """What makes an attempt different, from a few letters."""
    return text.encode().hex().rjust(12, "0")


SINK = stream_sink("3f2b-77")
A = PreparedTransaction(attempt_id(SINK, 4, 0, random_part("a1")), 7, 0)
B = PreparedTransaction(attempt_id(SINK, 4, 1, random_part("b2")), 8, 3)
C = PreparedTransaction(attempt_id(SINK, 4, 1, random_part("c3")), 9, 0)


# --- the plan ---


def test_the_first_commit_of_a_batch_decides_it() -> None:
    for last in (None, Decision(3, done=True)):
        plan = plan_commit(last, 4, [A, B], rows=9)
        assert plan.record == Decision(4, (A, B), rows=9)
        assert (plan.finish, plan.abort, plan.clean_until, plan.refusal) == (None, (), 4, None)


def test_a_replayed_batch_commits_what_was_decided_and_aborts_the_rest() -> None:
    decided = Decision(4, (A, B))
    plan = plan_commit(decided, 4, [A, C])
    assert (plan.finish, plan.record, plan.abort) == (decided, None, (C,))
    plan = plan_commit(decided.as_done(), 4, [C])
    assert (plan.finish, plan.record, plan.abort) == (None, None, (C,))


def test_an_earlier_decision_is_finished_first() -> None:
    earlier = Decision(3, (A,))
    assert plan_commit(earlier, 4, [B]).finish == earlier
    assert plan_commit(earlier, 4, []).finish == earlier


def test_an_empty_batch_is_not_decided() -> None:
    plan = plan_commit(Decision(3, done=True), 4, [])
    assert plan.record is None and plan.clean_until == 3, "another attempt of batch 4 may have rows"


def test_an_older_checkpoint_is_refused_and_its_rows_stay_invisible() -> None:
    plan = plan_commit(Decision(7, done=True), 4, [A])
    assert plan.abort == (A,) and plan.record is None
    assert plan.refusal is not None and "batch 7 already" in plan.refusal and "batch 4" in plan.refusal


def test_an_abort_after_the_decision_aborts_nothing_of_it() -> None:
    plan = plan_abort(SINK, Decision(4, (A, B)), 4, [A, B])
    assert plan.finish == Decision(4, (A, B)) and plan.abort == ()


def test_an_abort_touches_only_its_own_attempts() -> None:
    plan = plan_abort(SINK, Decision(3, done=True), 4, [A])
    assert (plan.abort, plan.record, plan.clean_until) == ((A,), None, 3)


def test_a_failed_batch_write_is_decided_too() -> None:
    plan = plan_abort(batch_sink("j"), None, 0, [])
    assert plan.record == Decision(0, done=True) and plan.clean_until == 0
    assert is_decided(plan.record, 0)


def test_names_of_attempts_tell_their_batch() -> None:
    query, part = stream_sink("0b5c9f1e-1c1c-4f1e-9d0e-6a1c7d3f0a11"), random_part("ab")
    assert batch_of(query, attempt_id(query, 12, 3, part)) == 12
    others = (f"{query}-12", f"{query}-x-3-{part}", f"{query}-12-x-{part}", "billing-0")
    for other in (query, *others, attempt_id(batch_sink("j"), 0, 0, part)):
        assert batch_of(query, other) == -1
    names = [attempt_id(query, batch, 0, part) for batch in (1, 2, 3)]
    assert leftovers(query, 2, [*names, query]) == names[:2]


def test_a_sink_whose_name_goes_on_with_numbers_is_another_one() -> None:
    sink, dated = named_sink("counts"), named_sink("counts-2026-11-19")
    theirs = [dated, attempt_id(dated, 3, 0, random_part("a"))]
    assert [batch_of(sink, name) for name in theirs] == [-1, -1]
    assert leftovers(sink, 3000, theirs) == []


def test_transactions_that_are_not_open_are_missing() -> None:
    other = A._replace(producer_epoch=1)
    assert missing([A, B], [(A, "Ongoing"), (B, "Ongoing"), (C, "Empty")]) == ([], [])
    assert missing([A, B], [(B, "PrepareAbort")]) == ([A.transactional_id], [B.transactional_id])
    assert missing([A], [(other, "Ongoing")]) == ([], [A.transactional_id])


def test_decisions_are_what_was_stored() -> None:
    for decision in (Decision(4, (A, B), rows=5), Decision(4, done=True)):
        assert decode(SINK, encode(SINK, decision)) == decision
    with pytest.raises(DecisionProblem, match="has version 2"):
        decode(SINK, b'{"version":2}')
    for damaged in (
        b"",
        b"[]",
        b'{"version":1}',
        b'{"version":1,"batch":1,"done":0,"rows":0,"transactions":[7]}',
    ):
        with pytest.raises(DecisionProblem, match="cannot be read"):
            decode(SINK, damaged)
    assert partition_of(batch_sink("j")) == 0 < partition_of(SINK)


# --- the steps, against a model ---


class Crash(BaseException):
    """This process does nothing any more."""


@dataclass
class Transaction:
    producer: tuple[int, int]
    rows: list[int] = field(default_factory=list)
    #: Empty, Ongoing, CompleteCommit or CompleteAbort.
    state: str = "Empty"
    prepared: bool = False


class Brokers:
    """Transactions and the decision topic, with the guarantees of the real ones and no others."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.transactions: dict[str, Transaction] = {}
        self.committed: list[int] = []
        self.epoch = 0
        self.stored: dict[str, Stored] = {}
        self.identities = 0

    # --- tasks

    def init(self, name: str) -> tuple[int, int]:
        self.identities += 1
        self.transactions[name] = Transaction((self.identities, 0))
        return (self.identities, 0)

    def produce(self, name: str, producer: tuple[int, int], rows: list[int]) -> None:
        found = self.transactions.get(name)
        if found is None or found.producer != producer:
            raise InvalidProducerIdMapping()
        if found.state not in ("Empty", "Ongoing"):
            raise ProducerFenced()
        found.state = "Ongoing"
        found.rows += rows

    def prepare(self, name: str, producer: tuple[int, int]) -> PreparedTransaction:
        found = self.transactions.get(name)
        if found is None or found.producer != producer:
            raise InvalidProducerIdMapping()
        if found.state != "Ongoing":
            raise InvalidTxnState()
        found.prepared = True
        return PreparedTransaction(name, *producer)

    def end(self, prepared: PreparedTransaction, *, commit: bool) -> None:
        found = self.transactions.get(prepared.transactional_id)
        if found is None or found.producer != prepared[1:]:
            raise InvalidProducerIdMapping()
        wanted = "CompleteCommit" if commit else "CompleteAbort"
        if found.state == "Ongoing":
            found.state = wanted
            if commit:
                assert found.prepared
                self.committed += found.rows
        elif found.state != wanted:
            raise InvalidTxnState()


class Process:
    """One driver or task: its calls reach the brokers until it crashes, which may be before or after any of them."""

    def __init__(self, brokers: Brokers, crash: float, fail: float = 0.0) -> None:
        self._brokers = brokers
        self._crash = crash
        self._fail = fail

    async def call(self, work: Callable[[], Any]) -> Any:
        chance = self._brokers.chance
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if chance.random() < self._crash:
            raise Crash
        result = work()
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if chance.random() < self._crash:
            raise Crash
        if chance.random() < self._fail:
            raise RequestTimedOut("The response was lost.")
        return result


class Log:
    """`settle.Decisions`."""

    def __init__(self, brokers: Brokers, process: Process) -> None:
        self._brokers, self._process = brokers, process

    def writer(self) -> AbstractAsyncContextManager[Any]:
        return self._opened()

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        def fence() -> int:
            self._brokers.epoch += 1
            return self._brokers.epoch

        epoch = await self._process.call(fence)
        brokers, process = self._brokers, self._process

        class Writer:
            async def write(self, decisions: Mapping[str, Decision | None]) -> None:
                def write() -> None:
                    if epoch != brokers.epoch:
                        raise ProducerFenced()
                    for sink, decision in decisions.items():
                        assert decision is not None
                        brokers.stored[sink] = Stored(decision, 0)

                await process.call(write)

        yield Writer()

    async def read(self) -> dict[str, Stored]:
        return await self._process.call(lambda: dict(self._brokers.stored))  # type: ignore[no-any-return]


class Ends:
    """`settle.Transactions`."""

    def __init__(self, brokers: Brokers, process: Process) -> None:
        self._brokers, self._process = brokers, process

    async def commit(self, *prepared: PreparedTransaction) -> None:
        for each in prepared:
            await self._process.call(lambda each=each: self._brokers.end(each, commit=True))

    async def abort_unless_ended(self, *prepared: PreparedTransaction) -> None:
        for each in prepared:
            with contextlib.suppress(InvalidTxnState, InvalidProducerIdMapping):
                await self._process.call(lambda each=each: self._brokers.end(each, commit=False))

    async def listed(self, prefix: str) -> list[TransactionListing]:
        def listed() -> list[TransactionListing]:
            return [
                TransactionListing(name, each.state, *each.producer)
                for name, each in self._brokers.transactions.items()
                if name.startswith(prefix)
            ]

        return await self._process.call(listed)  # type: ignore[no-any-return]

    async def forget(self, transactional_ids: Sequence[str]) -> list[str]:
        kept: list[str] = []

        def forget(name: str) -> None:
            found = self._brokers.transactions.get(name)
            if found is not None and found.state == "Ongoing":
                kept.append(name)
            else:
                self._brokers.transactions.pop(name, None)

        for name in transactional_ids:
            await self._process.call(lambda name=name: forget(name))
        return kept


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class World:
    """One query: drivers that crash and are replaced, perhaps while they live on as zombies."""

    def __init__(self, seed: int, batches: int) -> None:
        self.chance = random.Random(seed)
        self.brokers = Brokers(self.chance)
        self.batches = batches
        #: Spark's commit log: batches that need no replay. Offsets of a batch are fixed, so its rows are.
        self.logged = -1
        self.zombies: list[asyncio.Task[Any]] = []
        self.attempts = 0

    def rows(self, batch: int, partition: int) -> list[int]:
        return [batch * 100 + partition * 10 + n for n in range(batch % 3)]  # none for every third batch

    async def task(self, batch: int, partition: int) -> PreparedTransaction | None:
        self.attempts += 1
        name = attempt_id(SINK, batch, partition, random_part(str(self.attempts)))
        process = Process(self.brokers, crash=0.04)
        rows = self.rows(batch, partition)
        if not rows:
            return None
        producer = await process.call(lambda: self.brokers.init(name))
        stored = await process.call(lambda: self.brokers.stored.get(SINK))
        if is_decided(None if stored is None else stored.decision, batch):
            return None
        for row in rows:
            await process.call(lambda row=row: self.brokers.produce(name, producer, [row]))
        return await process.call(lambda: self.brokers.prepare(name, producer))  # type: ignore[no-any-return]

    async def successful_task(self, batch: int, partition: int) -> PreparedTransaction | None:
        """Spark runs it up to four times; sometimes twice at once, and the loser goes on for as long as it likes."""
        for _ in range(4):
            first = asyncio.ensure_future(self.task(batch, partition))
            attempts = {first}
            if self.chance.random() < 0.2:
                attempts.add(asyncio.ensure_future(self.task(batch, partition)))
            done, others = await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            self.zombies += others
            for each in sorted(done, key=lambda task: task is not first):
                if each.exception() is None:
                    return each.result()
        raise Crash  # the job fails, and with it the query

    async def driver(self) -> None:
        process = Process(self.brokers, crash=0.01, fail=0.01)
        while (batch := self.logged + 1) < self.batches:
            messages = [await self.successful_task(batch, partition) for partition in range(2)]
            made = [each for each in messages if each is not None]
            settlement = Settlement(
                SINK, Log(self.brokers, process), Ends(self.brokers, process), FakeClock()
            )
            try:
                await settlement.commit(batch, made, len(made))
            except (DecisionProblem, ProducerFenced, InvalidTxnState, RequestTimedOut):
                await settlement.abort(batch, made)
                raise
            self.logged = max(self.logged, batch)

    async def run(self) -> None:
        for _ in range(500):
            if self.logged + 1 >= self.batches:
                break
            running = asyncio.ensure_future(self.driver())
            if self.chance.random() < 0.3:
                for _ in range(self.chance.randrange(60)):
                    await asyncio.sleep(0)
                self.zombies.append(running)  # cut off, not dead: its successor starts now
                continue
            await asyncio.wait({running})
            running.exception()
        else:
            raise AssertionError(f"The query does not get beyond batch {self.logged}.")
        if self.zombies:
            await asyncio.wait(self.zombies)
        for each in self.zombies:
            each.exception()


@given(st.integers(0, 2**32))
def test_each_row_is_committed_once_whichever_process_dies(seed: int) -> None:
    world = World(seed, batches=6)
    asyncio.run(world.run())
    expected = [row for batch in range(6) for partition in range(2) for row in world.rows(batch, partition)]
    assert sorted(world.brokers.committed) == sorted(expected)
    left = [
        name for name, each in world.brokers.transactions.items() if each.state == "Ongoing" and each.prepared
    ]
    assert not left, "readers would wait for it until the next batch"


async def settle_until(
    crash_at: int | None, brokers: Brokers, work: Callable[[Settlement], Coroutine[Any, Any, None]]
) -> bool:
    """Run it until its n-th step; True if it got to its end."""
    steps = 0

    def at(step: Step) -> None:
        nonlocal steps
        steps += 1
        if steps == crash_at:
            raise Crash(step)

    process = Process(brokers, crash=0.0)
    settlement = Settlement(SINK, Log(brokers, process), Ends(brokers, process), FakeClock(), at)
    try:
        await work(settlement)
    except Crash:
        return False
    return True


def attempt(brokers: Brokers, batch: int, partition: int, what: str, rows: list[int]) -> PreparedTransaction:
    name = attempt_id(SINK, batch, partition, random_part(what))
    producer = brokers.init(name)
    brokers.produce(name, producer, rows)
    return brokers.prepare(name, producer)


@pytest.mark.parametrize("crash_at", range(1, 8))
def test_a_driver_that_dies_between_two_steps_is_continued(crash_at: int) -> None:
    async def scenario() -> None:
        brokers = Brokers(random.Random(crash_at))
        first = [attempt(brokers, 0, n, "first", [n]) for n in range(2)]
        whole = await settle_until(crash_at, brokers, lambda each: each.commit(0, first, 2))
        assert whole == (crash_at == 7)
        again = [attempt(brokers, 0, n, "again", [n]) for n in range(2)]
        assert await settle_until(None, brokers, lambda each: each.commit(0, again, 2))
        assert sorted(brokers.committed) == [0, 1]
        assert not brokers.transactions, "nothing is left open or remembered"

    asyncio.run(scenario())


def test_a_transaction_that_someone_aborts_fails_the_batch_before_its_decision() -> None:
    async def scenario() -> None:
        brokers = Brokers(random.Random(1))
        made = [attempt(brokers, 0, n, "x", [n]) for n in range(2)]
        brokers.end(made[1], commit=False)
        with pytest.raises(DecisionProblem, match=r"were aborted before it was committed"):
            await settle_until(None, brokers, lambda each: each.commit(0, made, 2))
        assert not brokers.committed and not brokers.stored
        await settle_until(None, brokers, lambda each: each.abort(0, made))
        again = [attempt(brokers, 0, n, "again", [n]) for n in range(2)]
        assert await settle_until(None, brokers, lambda each: each.commit(0, again, 2))
        assert brokers.committed == [0, 1]

    asyncio.run(scenario())


def test_rows_that_were_decided_and_lost_stop_the_query() -> None:
    async def scenario() -> None:
        brokers = Brokers(random.Random(1))
        made = [attempt(brokers, 0, 0, "x", [1])]
        assert not await settle_until(3, brokers, lambda each: each.commit(0, made, 1))
        brokers.end(made[0], commit=False)
        again = [attempt(brokers, 0, 0, "again", [1])]
        with pytest.raises(DecisionProblem, match="Some of its rows are missing"):
            await settle_until(None, brokers, lambda each: each.commit(0, again, 1))

    asyncio.run(scenario())


def test_a_batch_write_finishes_those_whose_drivers_died() -> None:
    async def scenario() -> None:
        brokers = Brokers(random.Random(1))
        dead, mine = batch_sink("dead"), batch_sink("mine")
        name = attempt_id(dead, 0, 0, random_part("x"))
        producer = brokers.init(name)
        brokers.produce(name, producer, [1])
        left = brokers.prepare(name, producer)
        brokers.stored[dead] = Stored(Decision(0, (left,)), 0)
        process = Process(brokers, crash=0.0)
        settlement = Settlement(mine, Log(brokers, process), Ends(brokers, process), FakeClock())
        await settlement.commit(0, [], 0)
        assert brokers.committed == [1] and brokers.stored[dead].decision.done

    asyncio.run(scenario())
