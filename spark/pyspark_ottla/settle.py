"""Commits or aborts a batch on the driver, in the five steps of docs/decisions/0017. [S]

`decisions` decides, and the ports below do: brokers in production, a model in tests. Any step may be the last one of
this driver; the next driver of the query does the same steps again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

from ottla_client.errors import ClientError
from ottla_client.prepared import PreparedTransaction
from ottla_client.transaction_admin import TransactionListing
from ottla_core.errors import InvalidProducerIdMapping, InvalidTxnState, ProducerFenced, RequestError
from ottla_core.ports.clock import Clock
from pyspark_ottla import decisions
from pyspark_ottla.decision_log import Stored
from pyspark_ottla.decisions import Decision, DecisionProblem, Plan

log = logging.getLogger(__name__)

#: Refusals to commit a transaction that is not there any more.
_LOST = (InvalidTxnState, InvalidProducerIdMapping, ProducerFenced)
#: For the commits of a decided batch: coordinators may move meanwhile.
_EXECUTE_S = 120.0
#: For markers of this batch, and for coordinators that move while transactions are listed.
_CLEAN_S = 10.0
_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.5
#: A task of a finished batch write may still run; until then the decision stops it.
_KEEP_DONE_MS = 24 * 3600 * 1000


class Step(Enum):
    """Reached by the driver."""

    FENCED = 1
    READ = 2
    DECIDED = 3
    COMMITTED = 4
    DONE = 5
    CLEANED = 6


class Writer(Protocol):
    async def write(self, decisions: Mapping[str, Decision | None]) -> None: ...


class Decisions(Protocol):
    """`decision_log` for one sink."""

    def writer(self) -> AbstractAsyncContextManager[Writer]:
        """Fences the writers before it."""
        ...

    async def read(self) -> dict[str, Stored]: ...


class Transactions(Protocol):
    """`ottla_client.prepared.PreparedTransactions`."""

    async def commit(self, *prepared: PreparedTransaction) -> None: ...

    async def abort_unless_ended(self, *prepared: PreparedTransaction) -> None: ...

    async def listed(self, prefix: str) -> list[TransactionListing]: ...

    async def forget(self, transactional_ids: Sequence[str]) -> list[str]: ...


class Settlement:
    def __init__(
        self,
        sink: str,
        log_: Decisions,
        transactions: Transactions,
        clock: Clock,
        at: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self._sink = sink
        self._log = log_
        self._transactions = transactions
        self._clock = clock
        self._at = at

    async def commit(self, batch: int, attempts: Iterable[PreparedTransaction], rows: int) -> None:
        attempts = tuple(attempts)
        await self._settle(lambda last: decisions.plan_commit(last, batch, attempts, rows))

    async def abort(self, batch: int, attempts: Iterable[PreparedTransaction]) -> None:
        attempts = tuple(attempts)
        await self._settle(lambda last: decisions.plan_abort(self._sink, last, batch, attempts))

    async def _settle(self, plan_for: Callable[[Decision | None], Plan]) -> None:
        async with self._log.writer() as writer:
            self._at(Step.FENCED)
            stored = await self._log.read()
            self._at(Step.READ)
            last = stored.get(self._sink)
            plan = plan_for(None if last is None else last.decision)
            if plan.finish is not None:
                await self._execute(plan.finish, writer)
            if plan.record is not None:
                await self._check_open(plan.record)
                await writer.write({self._sink: plan.record})
                self._at(Step.DECIDED)
                if not plan.record.done:
                    await self._execute(plan.record, writer)
            await self._transactions.abort_unless_ended(*plan.abort)
            if decisions.is_batch_sink(self._sink):
                await self._help_others(stored, writer)
        await self._clean(plan.clean_until)
        self._at(Step.CLEANED)
        if plan.refusal is not None:
            raise DecisionProblem(plan.refusal)

    async def _execute(self, decision: Decision, writer: Writer) -> None:
        deadline = self._clock.monotonic() + _EXECUTE_S
        while True:
            try:
                await self._transactions.commit(*decision.transactions)
                break
            except _LOST as error:
                raise DecisionProblem(decisions.aborted_after(decision.batch)) from error
            except (RequestError, ClientError) as error:
                if self._clock.monotonic() > deadline:
                    raise DecisionProblem(decisions.not_visible_yet(decision.batch, str(error))) from error
            await self._clock.sleep(_PAUSE_MAX_S)
        self._at(Step.COMMITTED)
        await writer.write({self._sink: decision.as_done()})
        self._at(Step.DONE)

    async def _check_open(self, decision: Decision) -> None:
        """Raise unless all transactions can be committed: after the decision, a missing one means lost rows."""
        if not decision.transactions:
            return
        deadline, pause_s = self._clock.monotonic() + _CLEAN_S, _PAUSE_S
        while True:
            listed = await self._transactions.listed(decisions.prefix_of(self._sink))
            unknown, ended = decisions.missing(
                decision.transactions, ((_identity(each), each.state) for each in listed)
            )
            # The list has gaps while coordinators move.
            if ended or (unknown and self._clock.monotonic() > deadline):
                raise DecisionProblem(decisions.aborted_before(decision.batch, ended or unknown))
            if not unknown:
                return
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def _clean(self, until: int) -> None:
        """Abort and forget what is left of decided batches; when it returns, markers of the batch are written.

        A broker forgets an id that has no open transaction: its task cannot begin one any more. What is left after
        the time is left to the next batch.
        """
        deadline, pause_s = self._clock.monotonic() + _CLEAN_S, _PAUSE_S
        while True:
            problem: Exception | str = "markers are not written yet"
            try:
                if await self._clean_once(until):
                    return
            except (RequestError, ClientError) as error:
                problem = error
            if self._clock.monotonic() > deadline:
                log.warning("The next batch of %s cleans up after this one: %s", self._sink, problem)
                return
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def _clean_once(self, until: int) -> bool:
        listed = await self._transactions.listed(decisions.prefix_of(self._sink))
        mine = set(decisions.leftovers(self._sink, until, (each.transactional_id for each in listed)))
        left = [each for each in listed if each.transactional_id in mine]
        if not left:
            return True
        await self._transactions.abort_unless_ended(
            *(_identity(each) for each in left if each.state == "Ongoing")
        )
        return not await self._transactions.forget([each.transactional_id for each in left])

    async def _help_others(self, stored: Mapping[str, Stored], writer: Writer) -> None:
        """Finish batch writes whose drivers died after they had decided; nobody runs them again.

        Their decisions do not change any more, so a driver that is alive and does the same is no conflict.
        """
        now_ms = self._clock.wall_ms()
        finished: dict[str, Decision | None] = {}
        for sink, each in stored.items():
            if sink == self._sink or not decisions.is_batch_sink(sink):
                continue
            if each.decision.done:
                if now_ms - each.timestamp_ms > _KEEP_DONE_MS:
                    finished[sink] = None
                continue
            try:
                await self._transactions.commit(*each.decision.transactions)
            except _LOST:
                log.warning("The batch write %s is incomplete: %s", sink, decisions.aborted_after(0))
            except (RequestError, ClientError) as error:
                log.warning("The next batch write finishes %s: %s", sink, error)
                continue
            finished[sink] = each.decision.as_done()
        if finished:
            try:
                await writer.write(finished)
            except (RequestError, ClientError) as error:
                log.warning("The next batch write marks others as done: %s", error)


def _identity(listed: TransactionListing) -> PreparedTransaction:
    return PreparedTransaction(listed.transactional_id, listed.producer_id, listed.producer_epoch)
