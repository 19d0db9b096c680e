"""Transactions that a producer has prepared (`Producer.prepare`), ended by any process that knows their names. [S]

>>> prepared = await producer.prepare()                        # a tuple of texts and numbers: store it, or send it
>>> async with PreparedTransactions("127.0.0.1:9192") as transactions:
...     await transactions.commit(prepared)                    # again, if it is unknown whether it was committed
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ottla_client.cluster import Cluster
from ottla_client.connection import exception_of
from ottla_client.coordinator import Coordinator
from ottla_client.record import PreparedTransaction as PreparedTransaction
from ottla_client.security import Security, security_of
from ottla_client.transaction_admin import TransactionAdmin, TransactionListing
from ottla_core.errors import InvalidProducerIdMapping, InvalidTxnState, ProducerFenced, RequestError
from ottla_core.pb import groups_pb2
from ottla_core.pb import transactions_pb2 as pb
from ottla_core.ports.clock import Clock
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock

#: Calls in flight.
_AT_ONCE = 32
#: Coordinators that one call looks up.
_NAMES_MAX = 500
#: Refusals to abort a transaction that is not open any more, or that another producer has replaced.
_ENDED = (InvalidTxnState, InvalidProducerIdMapping, ProducerFenced)


class PreparedTransactions:
    """Commits and aborts prepared transactions. A repeated call has the same outcome."""

    def __init__(
        self,
        bootstrap: str,
        *,
        request_timeout_ms: int = 30_000,
        clock: Clock | None = None,
        security: Security | Mapping[str, str] | None = None,
    ) -> None:
        self._clock = RealClock() if clock is None else clock
        self._timeout_s = request_timeout_ms / 1000
        #: For callers that ask the brokers for more.
        self.cluster = Cluster(
            bootstrap,
            clock=self._clock,
            chance=RealChance(),
            request_timeout_s=self._timeout_s,
            security=security_of(security),
        )
        self._admin = TransactionAdmin(self.cluster, self._clock, self._timeout_s)

    async def __aenter__(self) -> Self:
        try:
            await self.cluster.open()
        except BaseException:
            await self.cluster.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cluster.close()

    async def commit(self, *prepared: PreparedTransaction) -> None:
        """Commit them; InvalidTxnState if one was aborted. Raises after all have been tried."""
        for outcome in await self._end(prepared, commit=True):
            if outcome is not None:
                raise outcome

    async def abort(self, *prepared: PreparedTransaction) -> None:
        """Abort them; InvalidTxnState if one was committed. Raises after all have been tried."""
        for outcome in await self._end(prepared, commit=False):
            if outcome is not None:
                raise outcome

    async def abort_unless_ended(self, *prepared: PreparedTransaction) -> None:
        """Abort those of them that are open still: an ended, fenced or forgotten transaction is left as it is."""
        for outcome in await self._end(prepared, commit=False):
            if outcome is not None and not isinstance(outcome, _ENDED):
                raise outcome

    async def listed(self, prefix: str) -> list[TransactionListing]:
        """The transactional ids that begin with `prefix`, with the state of their last transaction."""
        return await self._admin.list_transactions((), (), 0, prefix)

    async def forget(self, transactional_ids: Sequence[str]) -> list[str]:
        """Forget ids that nobody uses again. Returns those whose transaction has not ended, which are kept."""
        kept: list[str] = []

        async def forget_one(coordinator: Coordinator) -> None:
            request = pb.ForgetTransactionalIdsRequest(transactional_ids=[coordinator.group])
            try:
                await coordinator.ask("ForgetTransactionalIds", request, self._timeout_s, _first_forgotten)
            except InvalidTxnState:
                kept.append(coordinator.group)

        for outcome in await self._each(transactional_ids, forget_one):
            if outcome is not None:
                raise outcome
        return kept

    async def _end(
        self, prepared: Sequence[PreparedTransaction], *, commit: bool
    ) -> Sequence[BaseException | None]:
        by_id = {each.transactional_id: each for each in prepared}

        async def end_one(coordinator: Coordinator) -> None:
            each = by_id[coordinator.group]
            request = pb.EndTransactionRequest(
                transactional_id=each.transactional_id,
                producer=pb.ProducerIdentity(id=each.producer_id, epoch=each.producer_epoch),
                commit=commit,
            )
            await coordinator.ask("EndTransaction", request, self._timeout_s)

        return await self._each(list(by_id), end_one)

    async def _each(
        self, names: Sequence[str], work: Callable[[Coordinator], Coroutine[Any, Any, None]]
    ) -> Sequence[BaseException | None]:
        """The outcome of the work for each name, at most `_AT_ONCE` at the same time."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(coordinator: Coordinator) -> None:
            async with room:
                await work(coordinator)

        found: list[Coordinator] = []
        for first in range(0, len(names), _NAMES_MAX):
            found += await Coordinator.find_all(
                self.cluster,
                self._clock,
                names[first : first + _NAMES_MAX],
                groups_pb2.COORDINATOR_TYPE_TRANSACTION,
                self._timeout_s,
            )
        return await asyncio.gather(*(one(each) for each in found), return_exceptions=True)


def _first_forgotten(answer: Any) -> RequestError | None:
    return next((exception_of(each.error) for each in answer.forgotten if each.HasField("error")), None)
