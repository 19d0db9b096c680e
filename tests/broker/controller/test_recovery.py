"""A store that lost history for good: what `ottla cluster recover` writes, and when it refuses to."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from ottla_broker.controller.recovery import CannotRecover, Recovered, recover
from ottla_broker.metadata.history import Seen
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.cluster import CLUSTER, RECOVERIES
from ottla_broker.metadata.sections.controller import CONTROLLER, Elected
from ottla_broker.metadata.sections.partitions import EPOCH_LEAP, PARTITIONS, partition_key
from ottla_broker.metadata.sections.producer_ids import PRODUCER_BLOCK, PRODUCER_ID_LEAP
from ottla_broker.metadata.sections.topics import TOPICS, StoredTopic
from ottla_broker.metadata.values import uuid_text
from ottla_broker.metadata.watcher import LostHistory, Metadata
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import BRANCHES_MAX, Branch, Put
from ottla_core.real.chance import RealChance
from sim.clock import ManualClock
from sim.store import SimEtcd, SimStore

CLUSTER_ID = uuid_text(RealChance(5).uuid())
TOPIC = UUID(int=77, version=4)
#: More than one transaction takes.
COUNT = BRANCHES_MAX + 3


class Fixture:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.etcd = SimEtcd(self.clock)
        self.store = SimStore(self.etcd)

    def put(self, key: str, value: bytes) -> None:
        self.etcd.transact((), [Branch((), (Put(key, value),))])

    def fill(self) -> None:
        self.put(CLUSTER.key, CLUSTER.encode(CLUSTER_ID))
        self.put(TOPICS.key("t"), TOPICS.encode(StoredTopic(TOPIC, COUNT, {})))
        state = PartitionImage((1, 2, 3), 2, 7, (2, 3), dropped=(1,))
        for index in range(COUNT):
            self.put(partition_key(TOPIC, index), PARTITIONS.encode(state))
        self.put(PRODUCER_BLOCK.key, PRODUCER_BLOCK.encode(5000))

    def partition(self, index: int) -> PartitionImage:
        return PARTITIONS.decode(self.etcd.entries[partition_key(TOPIC, index)])


@pytest.fixture
async def f() -> Fixture:
    made = Fixture()
    made.fill()
    return made


async def test_every_partition_waits_for_all_its_replicas_at_an_epoch_above_all_disks(f: Fixture) -> None:
    assert await recover(f.store) == Recovered(CLUSTER_ID, 1, COUNT, 1)
    for index in range(COUNT):
        state = f.partition(index)
        assert (state.leader, state.leader_epoch) == (NO_BROKER, 7 + EPOCH_LEAP)
        assert state.isr == state.torn == (1, 2, 3) and state.elr == state.dropped == ()
    assert PRODUCER_BLOCK.decode(f.etcd.entries[PRODUCER_BLOCK.key]) == 5000 + PRODUCER_ID_LEAP
    assert (await recover(f.store)).number == 2


async def test_brokers_that_were_refused_take_over_what_was_recovered(f: Fixture) -> None:
    seen = Seen(CLUSTER_ID, f.etcd.revision + 1000)

    def started(seen: Seen) -> Metadata:
        return Metadata(f.store, f.clock, RealChance(1), seen=seen)

    with pytest.raises(LostHistory, match="ottla cluster recover"):
        await started(seen).load()
    await recover(f.store)
    image = await started(seen).load()
    assert image.recoveries == 1 and image.topics["t"].partitions[0].leader_epoch > EPOCH_LEAP
    with pytest.raises(LostHistory, match="of recovery 2"):
        await started(Seen(CLUSTER_ID, 1, 2)).load()


async def test_a_broker_that_runs_does_not(f: Fixture) -> None:
    """It may have led since the backup, and has not seen that this is over."""
    metadata = Metadata(f.store, f.clock, RealChance(1))
    running = asyncio.ensure_future(metadata.run())
    await f.clock.settle()
    before = metadata.image
    await recover(f.store)
    await f.clock.advance(5)
    assert metadata.refusal is not None and "restart" in metadata.refusal
    assert metadata.image.recoveries == 0 == before.recoveries
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (CONTROLLER.key, CONTROLLER.encode(Elected(1, TOPIC)), "the controller"),
        (BROKERS.key(4), b"{}", r"registered \(4\)"),
    ],
)
async def test_it_is_refused_while_a_broker_is_registered(
    f: Fixture, key: str, value: bytes, says: str
) -> None:
    f.put(key, value)
    revision = f.etcd.revision
    with pytest.raises(CannotRecover, match=says):
        await recover(f.store)
    assert f.etcd.revision == revision


async def test_an_empty_store_is_refused() -> None:
    f = Fixture()
    with pytest.raises(CannotRecover, match="no cluster in this store"):
        await recover(f.store)
    assert not f.etcd.entries


async def test_a_concurrent_registration_aborts_it(f: Fixture) -> None:
    """R3 and R4: some partitions are rewritten, but no broker believes them."""
    shipped = f.store.transact
    calls = 0

    async def transact(*arguments):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 2:
            f.put(CONTROLLER.key, CONTROLLER.encode(Elected(1, TOPIC)))
        return await shipped(*arguments)

    f.store.transact = transact  # type: ignore[method-assign]
    with pytest.raises(CannotRecover, match="run this again"):
        await recover(f.store)
    assert RECOVERIES.key not in f.etcd.entries
    # The first transaction has the producer ids, too.
    assert sum(f.partition(index).leader_epoch > EPOCH_LEAP for index in range(COUNT)) == BRANCHES_MAX - 1
