"""The driver's side of an exactly-once write: connects `settle` to the brokers. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ottla_client.errors import NotServed
from ottla_client.prepared import PreparedTransactions
from ottla_core.real.clock import RealClock
from pyspark_ottla.decision_log import DecisionWriter, Stored, read_decisions
from pyspark_ottla.options import WriteOptions
from pyspark_ottla.settle import Settlement, Step
from pyspark_ottla.task_write import Written, too_old


class _Decisions:
    def __init__(self, options: WriteOptions, sink: str, transactions: PreparedTransactions) -> None:
        self._bootstrap = options.bootstrap
        self._security = options.security
        self._timeout_s = options.request_timeout_ms / 1000
        self._sink = sink
        self._cluster = transactions.cluster

    def writer(self) -> AbstractAsyncContextManager[DecisionWriter]:
        return DecisionWriter.opened(
            self._bootstrap, self._security, self._sink, self._cluster, self._timeout_s
        )

    async def read(self) -> dict[str, Stored]:
        return await read_decisions(self._cluster, self._sink, self._timeout_s)


def settle(
    options: WriteOptions,
    sink: str,
    batch: int,
    messages: Sequence[Any],
    *,
    commit: bool,
    at: Callable[[Step], None] = lambda step: None,
) -> None:
    """Commit or abort a batch; `messages` are those of its tasks, None for tasks that failed."""
    written = [each for each in messages if isinstance(each, Written)]
    attempts = [each.transaction for each in written if each.transaction is not None]
    rows = sum(each.rows for each in written)

    async def work() -> None:
        async with PreparedTransactions(
            options.bootstrap,
            request_timeout_ms=options.request_timeout_ms,
            security=options.security,
        ) as transactions:
            log = _Decisions(options, sink, transactions)
            settlement = Settlement(sink, log, transactions, RealClock(), at)
            if commit:
                await settlement.commit(batch, attempts, rows)
            else:
                await settlement.abort(batch, attempts)

    try:
        asyncio.run(work())
    except NotServed as error:
        raise too_old(error) from None
