"""A metadata store with metrics: failed calls, transactions, durations. [S]

Wraps any `MetadataStore`; the composition root puts it around etcd's, so that neither the adapter nor its
users need to know of metrics.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from ottla_broker.metrics import MetadataProbe
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import (
    Branch,
    Compare,
    Entry,
    MetadataStore,
    Outcome,
    Revision,
    Snapshot,
    StoreError,
)

T = TypeVar("T")


class MeteredStore:
    def __init__(self, store: MetadataStore, probe: MetadataProbe, clock: Clock) -> None:
        self._store = store
        self._probe = probe
        self._clock = clock

    async def get(self, key: str) -> Entry | None:
        return await self._counted("get", self._store.get(key))

    async def scan(self, prefix: str) -> Snapshot:
        self._probe.scans += 1
        return await self._counted("scan", self._store.scan(prefix))

    async def transact(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> Outcome:
        outcome = await self._counted("transact", self._store.transact(guard, branches))
        self._probe.transactions += 1
        if not outcome.all_taken:
            self._probe.transactions_lost += 1
        return outcome

    async def grant_lease(self, ttl_s: int) -> int:
        return await self._counted("grant_lease", self._store.grant_lease(ttl_s))

    async def keep_alive(self, lease: int) -> float:
        return await self._counted("keep_alive", self._store.keep_alive(lease))

    async def revoke_lease(self, lease: int) -> None:
        await self._counted("revoke_lease", self._store.revoke_lease(lease))

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Revision]:
        """Not counted: a lost watch shows as another scan."""
        return self._store.watch(prefix, after_revision)

    async def compact(self, revision: int) -> None:
        await self._counted("compact", self._store.compact(revision))

    async def close(self) -> None:
        await self._store.close()

    async def _counted(self, operation: str, call: Awaitable[T]) -> T:
        began = self._clock.monotonic()
        try:
            done = await call
        except StoreError:
            self._probe.store_errors += 1
            raise
        self._probe.store_seconds.of(operation).observe(self._clock.monotonic() - began)
        return done
