"""The image follows the store through everything that can happen to a watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from ottla_broker.metadata.history import Seen
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.cluster import CLUSTER
from ottla_broker.metadata.sections.configs import BROKER_CONFIGS
from ottla_broker.metadata.values import uuid_text
from ottla_broker.metadata.watcher import LostHistory, Metadata
from ottla_core.ports.store import Branch, Changed, Delete, Entry, Put, Revision, StoreError
from ottla_core.real.chance import RealChance
from sim.clock import ManualClock
from sim.store import SimEtcd, SimStore

CLUSTER_ID = uuid_text(RealChance(5).uuid())


class Fixture:
    def __init__(self, seen: Seen | None = None) -> None:
        self.clock = ManualClock()
        self.etcd = SimEtcd(self.clock)
        self.store = SimStore(self.etcd)
        self.refusals: list[str] = []
        self.metadata = Metadata(
            self.store, self.clock, RealChance(1), seen=seen, on_refusal=self.refusals.append
        )
        self.etcd.transact((), [Branch((), (Put(CLUSTER.key, CLUSTER.encode(CLUSTER_ID)),))])

    def write(self, n: int) -> int:
        """Change something that an image shows: the setting "n" of all brokers."""
        put = Put(BROKER_CONFIGS.key(""), BROKER_CONFIGS.encode({"n": str(n)}))
        return self.etcd.transact((), [Branch((), (put,))]).revision

    @property
    def shown(self) -> str | None:
        return self.metadata.image.broker_configs.get("", {}).get("n")


@asynccontextmanager
async def following(fixture: Fixture) -> AsyncIterator[None]:
    task = asyncio.ensure_future(fixture.metadata.run())
    await fixture.clock.settle()
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_it_follows_and_tells_of_every_change() -> None:
    f = Fixture()
    told: list[tuple[ClusterImage, ClusterImage]] = []
    stop = f.metadata.subscribe(lambda old, new: told.append((old, new)))
    f.write(1)
    async with following(f):
        assert f.shown == "1" and f.metadata.image.cluster_id == CLUSTER_ID
        f.write(2)
        f.write(3)
        await f.clock.settle()
    assert f.shown == "3" and f.metadata.image.revision == f.etcd.revision
    assert [new.broker_configs[""]["n"] for _, new in told] == ["1", "2", "3"]
    assert all(a[1] is b[0] for a, b in pairwise(told))
    stop()


async def test_waiting_for_a_revision() -> None:
    f = Fixture()
    async with following(f):
        later = asyncio.ensure_future(f.metadata.wait_revision(f.etcd.revision + 1, 10))
        await f.clock.advance(3)
        assert not later.done()
        f.write(1)
        await f.clock.settle()
        await later
        await f.metadata.wait_revision(1, 0)
        never = asyncio.ensure_future(f.metadata.wait_revision(99, 10))
        await f.clock.advance(11)
        with pytest.raises(TimeoutError):
            await never


async def test_a_compacted_watch_reads_again() -> None:
    f = Fixture()
    async with following(f):
        f.store.silent = True  # The watch gets nothing while history goes on, and away.
        for n in range(10):
            f.write(n)
        f.etcd.compact(f.etcd.revision)
        await f.clock.settle()
        assert f.shown is None
        f.store.silent = False
        f.etcd.wake()
        await f.clock.advance(1)
        assert f.shown == "9" and f.store.counts["scan"] == 2
        f.write(10)
        await f.clock.settle()
        assert f.shown == "10"


async def test_a_silent_watch_is_read_again_within_20_s() -> None:
    f = Fixture()
    async with following(f):
        f.store.silent = True
        f.write(1)
        await f.clock.advance(12)
        assert f.shown is None
        await f.clock.advance(8)
        assert f.shown == "1"


@pytest.mark.parametrize("seed", range(10))
async def test_a_watch_that_breaks_at_any_time_loses_nothing(seed: int) -> None:
    f = Fixture()
    chance = RealChance(seed)
    async with following(f):
        for n in range(30):
            f.write(n)
            if chance.below(3) == 0:
                f.store.break_watches()
            if chance.below(4) == 0:
                f.etcd.transact((), [Branch((), (Delete(BROKER_CONFIGS.key("")),))])
            await f.clock.advance(chance.below(5) / 10)
        last = f.write(99)
        await f.clock.advance(5)
        assert f.shown == "99" and f.metadata.image.revision == last


async def test_a_store_that_is_away_is_waited_for_with_pauses() -> None:
    f = Fixture()
    f.write(1)

    attempts = 0

    async def counting(operation: str) -> None:
        nonlocal attempts
        attempts += 1
        raise StoreError("away")

    f.store.before = counting
    async with following(f):
        await f.clock.advance(60)
        assert 15 < attempts < 50 and f.shown is None
        f.store.before = None
        await f.clock.advance(4)
        assert f.shown == "1"


async def test_refreshing_and_following_never_go_back() -> None:
    f = Fixture()
    revisions: list[int] = []
    f.metadata.subscribe(lambda old, new: revisions.append(new.revision))

    async def slow(operation: str) -> None:
        if operation == "scan":
            await f.clock.sleep(1)

    async with following(f):
        f.store.after = slow  # The read is done, its answer travels; the watch goes on meanwhile.
        f.write(1)
        refreshing = asyncio.ensure_future(f.metadata.refresh())
        await f.clock.settle()
        f.write(2)
        await f.clock.advance(2)
        await refreshing
    assert f.shown == "2" and revisions == sorted(set(revisions))


async def test_a_late_watch_does_not_bring_back_the_past() -> None:
    f = Fixture()
    told: list[str] = []
    f.metadata.subscribe(lambda old, new: told.append(new.broker_configs.get("", {}).get("n", "")))
    async with following(f):
        f.store.silent = True
        f.write(1)
        f.write(2)
        await f.metadata.refresh()
        f.store.silent = False
        f.write(3)
        await f.clock.advance(1)
    assert told[-2:] == ["2", "3"] and "1" not in told


async def test_an_own_change_is_learnt_at_once_but_never_over_a_gap() -> None:
    f = Fixture()
    await f.metadata.load()

    def revision(n: int) -> Revision:
        value = BROKER_CONFIGS.encode({"n": str(n)})
        at = f.write(n)
        return Revision(at, (Changed(Entry(BROKER_CONFIGS.key(""), value, at, at)),))

    f.metadata.learn(revision(1))
    assert f.shown == "1" and f.metadata.image.revision == f.etcd.revision
    f.write(2)
    f.metadata.learn(revision(3))
    assert f.shown == "1"
    async with following(f):
        assert f.shown == "3"


async def test_a_store_restored_from_an_older_backup_changes_nothing() -> None:
    f = Fixture()
    f.write(1)
    backup = f.etcd.backup()
    f.write(2)
    async with following(f):
        f.etcd.restore(backup)
        await f.clock.advance(30)
        assert f.shown == "2" and f.metadata.refusal is not None
        assert f.refusals == [f.metadata.refusal] and "older backup" in f.metadata.refusal
        with pytest.raises(LostHistory):
            await f.metadata.refresh()
        # Somebody goes on from the backup: its numbers grow past ours, and it knows of our changes as little as before.
        for n in range(5):
            f.write(10 + n)
        await f.clock.advance(30)
        assert f.metadata.refusal is not None and f.shown == "2" and len(f.refusals) == 1


@pytest.mark.parametrize(
    "seen", [Seen(CLUSTER_ID, 1000), Seen("AAAAAAAAAAAAAAAAAAAAAA", 0)], ids=["revision", "cluster id"]
)
async def test_what_the_disk_has_seen_counts_from_the_first_read(seen: Seen) -> None:
    f = Fixture(seen)
    f.write(1)
    with pytest.raises(LostHistory):
        await f.metadata.load()
    assert f.shown is None and len(f.refusals) == 1 and f.metadata.image.cluster_id == seen.cluster_id


async def test_an_unreadable_value_stops_nothing() -> None:
    f = Fixture()
    async with following(f):
        f.write(1)
        bad = Put(BROKER_CONFIGS.key(""), b'{"v":2}')
        f.etcd.transact((), [Branch((), (bad, Put("topics/x", b"junk")))])
        put = Put(BROKER_CONFIGS.key("7"), BROKER_CONFIGS.encode({"n": "7"}))
        f.etcd.transact((), [Branch((), (put,))])
        await f.clock.settle()
        assert f.shown == "1" and f.metadata.image.broker_configs["7"] == {"n": "7"}
