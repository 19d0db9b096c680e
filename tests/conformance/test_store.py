"""One suite for the metadata store: a real etcd and its simulated twin behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from uuid import uuid4

import pytest

from conformance.etcd_process import EtcdProcess, running_etcd
from ottla_broker.metadata import etcd as etcd_module
from ottla_broker.metadata.etcd import EtcdStore
from ottla_core.errors import InvariantViolation
from ottla_core.ports.store import (
    BRANCHES_MAX,
    Branch,
    Changed,
    CreateRevisionIs,
    Delete,
    HistoryCompacted,
    LeaseExpired,
    MetadataStore,
    ModRevisionIs,
    Put,
    Removed,
    Revision,
    StoreError,
)
from sim.clock import ManualClock
from sim.store import SimEtcd, SimStore


class World:
    """A store under test, and how time passes for it."""

    def __init__(self, store: MetadataStore, clock: ManualClock | None) -> None:
        self.store = store
        self._clock = clock

    @property
    def is_simulated(self) -> bool:
        return self._clock is not None

    async def pass_time(self, seconds: float) -> None:
        if self._clock is None:
            await asyncio.sleep(seconds)
        else:
            await self._clock.advance(seconds)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture(params=["simulated", pytest.param("etcd", marks=pytest.mark.integration)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "simulated":
        clock = ManualClock()
        yield World(SimStore(SimEtcd(clock)), clock)
        return
    process: EtcdProcess = request.getfixturevalue("etcd")
    store = EtcdStore([process.endpoint], f"/ottla/{uuid4()}", progress_s=0.2, silence_s=2.0)
    yield World(store, None)
    await store.close()


@pytest.fixture
def store(world: World) -> MetadataStore:
    return world.store


def put(key: str, value: bytes = b"x", *, lease: int = 0) -> Branch:
    return Branch((), (Put(key, value, lease),))


async def write(store: MetadataStore, key: str, value: bytes = b"x", *, lease: int = 0) -> int:
    return (await store.transact((), [put(key, value, lease=lease)])).revision


async def seen(store: MetadataStore, prefix: str, after: int, count: int) -> list[Revision]:
    """The next `count` revisions that have changes."""
    found: list[Revision] = []
    async with asyncio.timeout(10), aclosing(store.watch(prefix, after)) as watch:  # type: ignore[type-var]
        async for revision in watch:
            if revision.changes:
                found.append(revision)
            if len(found) == count:
                return found
    raise AssertionError("a watch ends only by an exception")


# ---------------------------------------------------------------------- keys and transactions


async def test_a_key_has_a_life_and_a_version(store: MetadataStore) -> None:
    assert await store.get("a") is None
    first = await write(store, "a", b"1")
    second = await write(store, "a", b"2")
    entry = await store.get("a")
    assert entry is not None
    assert (entry.key, entry.value, entry.create_revision, entry.mod_revision) == ("a", b"2", first, second)
    await store.transact((), [Branch((), (Delete("a"),))])
    third = await write(store, "a")
    entry = await store.get("a")
    assert entry is not None and entry.create_revision == entry.mod_revision == third > second


async def test_a_scan_is_sorted_complete_and_of_one_revision(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_ENTRIES", 3)
    for i in range(10):
        revision = await write(store, f"p/{i:02}", str(i).encode())
    await write(store, "q/1")
    snapshot = await store.scan("p/")
    assert [(e.key, e.value) for e in snapshot.entries] == [(f"p/{i:02}", str(i).encode()) for i in range(10)]
    assert snapshot.revision == revision + 1
    assert (await store.scan("nothing/")).entries == ()


async def test_a_guard_that_fails_stops_everything(store: MetadataStore) -> None:
    revision = await write(store, "guard")
    outcome = await store.transact([CreateRevisionIs("guard", revision + 7)], [put("a"), put("b")])
    assert (outcome.guard_held, outcome.taken, outcome.all_taken) == (False, (False, False), False)
    assert await store.get("a") is None
    assert (await store.transact([CreateRevisionIs("guard", revision)], [put("a")])).all_taken


async def test_one_race_fails_one_branch(store: MetadataStore) -> None:
    one = await write(store, "one")
    two = await write(store, "two")
    await write(store, "two", b"raced")
    branches = [
        Branch((ModRevisionIs("one", one),), (Put("one", b"new"),)),
        Branch((ModRevisionIs("two", two),), (Put("two", b"new"),)),
        Branch((ModRevisionIs("three", 0),), (Put("three", b"new"),)),
    ]
    outcome = await store.transact((), branches)
    assert outcome.guard_held and outcome.taken == (True, False, True)
    values = {e.key: e.value for e in (await store.scan("")).entries}
    assert values == {"one": b"new", "two": b"raced", "three": b"new"}


async def test_compares_see_the_state_before_the_transaction(store: MetadataStore) -> None:
    absent = ModRevisionIs("a", 0)
    outcome = await store.transact((), [put("a"), Branch((absent,), (Put("b", b"x"),))])
    assert outcome.taken == (True, True)


async def test_absence_and_life_are_compared(store: MetadataStore) -> None:
    create = Branch((CreateRevisionIs("a", 0),), (Put("a", b"1"),))
    made = await store.transact((), [create])
    assert made.taken == (True,)
    assert (await store.transact((), [create])).taken == (False,)
    await write(store, "a", b"2")
    same_life = Branch((CreateRevisionIs("a", made.revision),), (Delete("a"),))
    assert (await store.transact((), [same_life])).taken == (True,)
    assert await store.get("a") is None


async def test_the_largest_transaction_is_accepted_and_a_larger_one_is_our_bug(store: MetadataStore) -> None:
    def branch(i: int) -> Branch:
        compares = tuple(ModRevisionIs(f"k/{i}/{j}", 0) for j in range(3))
        return Branch(compares, tuple(Put(f"k/{i}/{j}", b"x" * 300) for j in range(3)))

    guard = [ModRevisionIs(f"guard/{i}", 0) for i in range(100)]
    outcome = await store.transact(guard, [branch(i) for i in range(BRANCHES_MAX)])
    assert outcome.all_taken
    assert {e.mod_revision for e in (await store.scan("k/")).entries} == {outcome.revision}
    with pytest.raises(InvariantViolation):
        await store.transact((), [put(str(i)) for i in range(BRANCHES_MAX + 1)])
    with pytest.raises(InvariantViolation):
        await store.transact((), [Branch((), tuple(Put(str(i), b"") for i in range(4)))])


async def test_the_same_key_in_two_branches_is_refused_as_a_whole(store: MetadataStore) -> None:
    with pytest.raises(StoreError):
        await store.transact((), [put("a", b"1"), put("a", b"2")])
    assert await store.get("a") is None


async def test_deleting_nothing_changes_nothing(store: MetadataStore) -> None:
    revision = await write(store, "a")
    outcome = await store.transact((), [Branch((), (Delete("b"),))])
    assert outcome.all_taken and outcome.revision == revision


# ---------------------------------------------------------------------- leases


async def test_a_lease_ends_unless_renewed_and_takes_its_keys(world: World) -> None:
    store = world.store
    kept, left = await store.grant_lease(2), await store.grant_lease(2)
    await write(store, "kept", lease=kept)
    revision = await write(store, "left", lease=left)
    for _ in range(6):
        await world.pass_time(0.9)
        assert await store.keep_alive(kept) == 2
    assert await store.get("left") is None
    entry = await store.get("kept")
    assert entry is not None and entry.lease == kept
    with pytest.raises(LeaseExpired):
        await store.keep_alive(left)
    assert (await seen(store, "", revision, 1))[0].changes == (Removed("left"),)
    await store.revoke_lease(kept)  # Revisions are etcd's, not the prefix's: leave nothing to expire later.


async def test_writing_under_a_lost_lease_fails_and_changes_nothing(store: MetadataStore) -> None:
    lease = await store.grant_lease(60)
    await store.revoke_lease(lease)
    with pytest.raises(LeaseExpired):
        await store.transact((), [put("plain"), put("leased", lease=lease)])
    assert (await store.scan("")).entries == ()
    await store.revoke_lease(lease)


async def test_revoking_takes_all_keys_in_one_revision(store: MetadataStore) -> None:
    lease = await store.grant_lease(60)
    await write(store, "a", lease=lease)
    await write(store, "b", lease=lease)
    revision = await write(store, "b")  # without the lease from now on
    await write(store, "c", lease=lease)
    await store.revoke_lease(lease)
    last = (await seen(store, "", revision, 2))[-1]
    assert set(last.changes) == {Removed("a"), Removed("c")}
    assert await store.get("b") is not None


async def test_deleting_a_leased_key_leaves_the_lease(store: MetadataStore) -> None:
    lease = await store.grant_lease(60)
    await write(store, "a", lease=lease)
    await store.transact((), [Branch((), (Delete("a"),))])
    assert await store.keep_alive(lease) == 60


# ---------------------------------------------------------------------- watching


async def test_a_watch_gives_whole_revisions_in_order(store: MetadataStore) -> None:
    start = await write(store, "w/0")
    outcomes = [
        await store.transact((), [put(f"w/{i}/{n}") for n in range(40)] + [put(f"other/{i}")])
        for i in range(5)
    ]
    found = await seen(store, "w/", start, 5)
    assert [r.revision for r in found] == [o.revision for o in outcomes]
    assert [len(r.changes) for r in found] == [40] * 5
    entry = await store.get("w/4/39")
    assert entry is not None and Changed(entry) in found[-1].changes


async def test_a_watch_goes_on_with_what_comes_later(store: MetadataStore) -> None:
    start = await write(store, "w")
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(seen(store, "", start, 3))
        for i in range(3):
            await asyncio.sleep(0.01)
            last = await write(store, f"w{i}", b"v")
    found = watching.result()
    assert [r.revision for r in found] == [last - 2, last - 1, last]


async def test_removal_names_the_key(store: MetadataStore) -> None:
    start = await write(store, "gone")
    removed = await store.transact((), [Branch((), (Delete("gone"),))])
    assert await seen(store, "", start, 1) == [Revision(removed.revision, (Removed("gone"),))]


async def test_a_watch_says_when_it_stands(world: World) -> None:
    start = await write(world.store, "a")

    async def first_sign() -> Revision:
        async with aclosing(world.store.watch("", start)) as watch:  # type: ignore[type-var]
            async for revision in watch:
                return revision
        raise AssertionError

    async with asyncio.TaskGroup() as group, asyncio.timeout(10):
        task = group.create_task(first_sign())
        assert (await task) == Revision(start, ())


async def test_a_quiet_watch_gives_signs_of_life(world: World) -> None:
    start = await write(world.store, "a")
    signs: list[Revision] = []

    async def collect() -> None:
        async with aclosing(world.store.watch("", start)) as watch:  # type: ignore[type-var]
            async for revision in watch:
                signs.append(revision)  # noqa: PERF401 (the watch never ends)

    task = asyncio.ensure_future(collect())
    await world.pass_time(31 if world.is_simulated else 1.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(signs) >= 4 and set(signs) == {Revision(start, ())}


async def test_compaction_is_told_and_keeps_what_is_there(store: MetadataStore) -> None:
    first = await write(store, "a", b"1")
    for i in range(5):
        last = await write(store, "a", str(i).encode())
    await store.compact(last)
    await store.compact(last)
    await store.compact(first)
    with pytest.raises(HistoryCompacted):
        await seen(store, "", first - 1, 1)
    entry = await store.get("a")
    assert entry is not None and entry.value == b"4"
    after = await write(store, "a", b"new")
    assert [r.revision for r in await seen(store, "", last, 1)] == [after]
    with pytest.raises(StoreError):
        await store.compact(after + 1_000_000)


# ---------------------------------------------------------------------- only the real one


@pytest.mark.integration
class TestEtcdAway:
    async def test_nobody_there_is_a_store_error_in_time(self, etcd: EtcdProcess) -> None:
        store = EtcdStore(["127.0.0.1:1"], "/x", timeout_s=0.5)
        for call in (store.get("a"), store.scan(""), store.keep_alive(1), store.grant_lease(6)):
            async with asyncio.timeout(5):
                with pytest.raises(StoreError):
                    await call
        with pytest.raises(StoreError):
            await seen(store, "", 1, 1)
        await store.close()

    async def test_the_next_endpoint_is_tried(self, etcd: EtcdProcess) -> None:
        store = EtcdStore(["127.0.0.1:1", etcd.endpoint], f"/ottla/{uuid4()}", timeout_s=2)
        with pytest.raises(StoreError):
            await store.get("a")
        assert await store.get("a") is None
        await store.close()

    async def test_a_frozen_store_ends_the_watch_and_the_calls(self, etcd: EtcdProcess) -> None:
        store = EtcdStore([etcd.endpoint], f"/ottla/{uuid4()}", timeout_s=2, progress_s=0.1, silence_s=1.5)
        start = await write(store, "a")
        async with aclosing(store.watch("", start)) as watch:  # type: ignore[type-var]
            assert (await anext(watch)).changes == ()
            etcd.pause()
            try:
                with pytest.raises(StoreError, match="silent"):
                    async for _ in watch:
                        pass
                with pytest.raises(StoreError):
                    await write(store, "a", b"unknown")
            finally:
                etcd.resume()
        assert (await store.get("a")) is not None
        await store.close()

    async def test_cancelling_a_watch_works_at_every_moment(self, etcd: EtcdProcess) -> None:
        """A broker that stops cancels its watch once, and waits for it to end."""
        store = EtcdStore([etcd.endpoint], f"/ottla/{uuid4()}", progress_s=0.001)
        start = await write(store, "a")

        async def follow_for_ever() -> None:
            while True:
                try:
                    async for _ in store.watch("", start):
                        pass
                except StoreError:
                    continue

        for moment in range(150):
            task = asyncio.ensure_future(follow_for_ever())
            await asyncio.sleep(moment % 30 / 5000)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=2)
            assert done, "the cancellation was lost"
        await store.close()

    async def test_a_killed_store_comes_back(self, etcd: EtcdProcess) -> None:
        store = EtcdStore([etcd.endpoint], f"/ottla/{uuid4()}", timeout_s=1, progress_s=0.1)
        start = await write(store, "a", b"before")
        watch = store.watch("", start)
        assert (await anext(aiter(watch))).changes == ()
        etcd.kill()
        with pytest.raises(StoreError):
            async for _ in watch:
                pass
        etcd.start()
        async with asyncio.timeout(10):
            while True:
                try:
                    entry = await store.get("a")
                    break
                except StoreError:
                    await asyncio.sleep(0.05)
        assert entry is not None and entry.value == b"before"
        await store.close()
