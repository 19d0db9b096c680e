"""The store behind the meter is the same store, and what is asked of it is counted."""

from __future__ import annotations

import pytest

from ottla_broker.metadata.metered_store import MeteredStore
from ottla_broker.metrics import MetadataProbe
from ottla_core.ports.store import Branch, ModRevisionIs, Put, StoreError
from sim.clock import ManualClock
from sim.store import SimEtcd, SimStore


async def test_transactions_scans_and_failures_are_counted() -> None:
    clock = ManualClock()
    probe = MetadataProbe()
    inner = SimStore(SimEtcd(clock))
    store = MeteredStore(inner, probe, clock)
    create = Branch((ModRevisionIs("a", 0),), (Put("a", b"1"),))

    assert (await store.transact((), [create])).all_taken
    assert not (await store.transact((), [create])).all_taken
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == b"1"
    assert [found.key for found in (await store.scan("")).entries] == ["a"]
    assert (probe.transactions, probe.transactions_lost, probe.scans, probe.store_errors) == (2, 1, 1, 0)
    assert sum(probe.store_seconds.of("transact").counts) == 2

    async def fail(operation: str) -> None:
        raise StoreError("cut off")

    inner.before = fail
    with pytest.raises(StoreError):
        await store.transact((), [create])
    with pytest.raises(StoreError):
        await store.get("a")
    assert (probe.transactions, probe.store_errors) == (2, 2)
