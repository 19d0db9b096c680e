"""Transactions that a producer has prepared (`Producer.prepare`), ended by any process that knows their names. [S]

>>> prepared = await producer.prepare()                        # a tuple of texts and numbers: store it, or send it
>>> async with PreparedTransactions("127.0.0.1:9192") as transactions:
...     await transactions.commit(prepared)                    # again, if it is unknown whether it was committed
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Self

from ottla_client.cluster import Cluster
from ottla_client.coordinator import Coordinator
from ottla_client.security import Security, security_of
from ottla_core.pb import groups_pb2
from ottla_core.pb import transactions_pb2 as pb
from ottla_core.ports.clock import Clock
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock


class PreparedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int


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
        self._cluster = Cluster(
            bootstrap,
            clock=self._clock,
            chance=RealChance(),
            request_timeout_s=self._timeout_s,
            security=security_of(security),
        )

    async def __aenter__(self) -> Self:
        try:
            await self._cluster.open()
        except BaseException:
            await self._cluster.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cluster.close()

    async def commit(self, prepared: PreparedTransaction) -> None:
        """Commit it; InvalidTxnState if it was aborted."""
        await self._end(prepared, commit=True)

    async def abort(self, prepared: PreparedTransaction) -> None:
        """Abort it; InvalidTxnState if it was committed."""
        await self._end(prepared, commit=False)

    async def _end(self, prepared: PreparedTransaction, *, commit: bool) -> None:
        request = pb.EndTransactionRequest(
            transactional_id=prepared.transactional_id,
            producer=pb.ProducerIdentity(id=prepared.producer_id, epoch=prepared.producer_epoch),
            commit=commit,
        )
        coordinator = Coordinator(
            self._cluster, self._clock, prepared.transactional_id, groups_pb2.COORDINATOR_TYPE_TRANSACTION
        )
        await coordinator.ask("EndTransaction", request, self._timeout_s)
