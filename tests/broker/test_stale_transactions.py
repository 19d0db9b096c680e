"""Transactions that nothing ends: aborted after transaction.max.timeout.ms, so that the log moves on (S1 to S3)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from broker.one_partition import NOW_MS, TP, World
from broker.replication.cluster import InlineOffload
from ottla_broker.config import LogDirsConfig
from ottla_broker.log.log import Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.partition.housekeeping import Housekeeping
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.partition.stale_transactions import StaleTransactions
from ottla_broker.requests import ProducerIdentity
from ottla_broker.service.transaction_owners import TransactionOwners, merged, rows_of
from ottla_broker.topic_config import TopicConfig
from ottla_broker.txn.messages import ListReply
from ottla_broker.txn.transaction import State, Transaction
from ottla_core.errors import InvalidTxnState, NotCoordinator
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import header_at
from sim.batches import Rec, make_batch
from sim.disk import SimDisk

MINUTE_S = 60.0


def open_transaction(producer_id: int, *, timestamp: int = NOW_MS) -> bytes:
    return make_batch(
        [Rec(b"k", b"never committed", timestamp)],
        producer_id=producer_id,
        epoch=3,
        sequence=0,
        transactional=True,
    )


async def test_the_log_moves_on_after_the_timeout() -> None:
    world = World()
    config = replace(LogDirsConfig(), cleaner_backoff_ms=1000, retention_check_interval_ms=1000)
    partition = world.partition
    for producer_id in range(120):
        partition.append(open_transaction(producer_id), ACKS_ALL, NOW_MS, origin=AppendOrigin.TRANSACTION)
    world.fill(4)
    keeper = Housekeeping(world.host, world.dirs, config, world.clock, InlineOffload(), world.metrics.log)
    running = asyncio.create_task(keeper.run())
    try:
        for _ in range(14):
            await world.clock.advance(MINUTE_S)
        assert partition.stable_offset() == 0, "aborted before its time"
        assert [h.base_offset for h in partition.log.verify()] == list(range(124))
        for _ in range(3):
            await world.clock.advance(MINUTE_S)
        log = partition.log
        assert partition.stable_offset() == partition.high_watermark == log.end_offset == 124 + 120
        aborted = log.aborted(0, log.end_offset)
        assert sorted(one.producer_id for one in aborted) == list(range(120))
        log.roll(world.clock.wall_ms())
        await world.clock.advance(MINUTE_S)
        left = [h.base_offset for h in log.verify() if not h.is_control]
        assert len(left) < 124, "compaction has not gone on"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_age_of_a_transaction_survives_restarts() -> None:
    """Cleanly or not: by the timestamps in the snapshot and in the log."""
    for clean in (True, False):
        disk = SimDisk()
        disk.make_dirs("/t-0")
        log = Log.open(disk, "/t-0", TopicConfig(), clean=True, now_ms=NOW_MS)
        log.append(open_transaction(7), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.TRANSACTION)
        log.close(clean)
        again = Log.open(disk, "/t-0", TopicConfig(), clean=clean, now_ms=NOW_MS + 900)
        assert again.producers.stale_transactions(NOW_MS + 1000, 1000, 10) == []
        (stale,) = again.producers.stale_transactions(NOW_MS + 1001, 1000, 10)
        assert (stale.producer_id, stale.producer_epoch, stale.first_offset) == (7, 3, 0)
        assert header_at(open_transaction(7)).is_transactional


# ---------------------------------------------------------------------- where coordinators exist


class Coordinators:
    """They answer with `owned`; `before_answer` happens meanwhile."""

    exist = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.owned_now: Mapping[int, frozenset[TopicPartition]] | None = {}
        self.asked: list[set[int]] = []
        self.ends: int | None = None

    async def owned(self, producer_ids: Collection[int]) -> Mapping[int, frozenset[TopicPartition]] | None:
        self.asked.append(set(producer_ids))
        if self.ends is not None:
            self.world.partition.end_transaction(
                ProducerIdentity(self.ends, 3), 5, commits=True, now_ms=NOW_MS
            )
            self.ends = None
        return self.owned_now

    async def abort(self, tp: TopicPartition, first_offset: int, /) -> None:
        partition = self.world.host.find(tp)
        for one in partition.log.producers.described():
            if one.txn_first_offset == first_offset:
                partition.end_transaction(
                    ProducerIdentity(one.producer_id, one.producer_epoch), 0, commits=False, now_ms=NOW_MS
                )
                return
        raise InvalidTxnState("It has ended.")


class Hanging:
    """A partition with an open transaction of producer 7 that is older than the timeout."""

    def __init__(self) -> None:
        self.world = World()
        self.coordinators = Coordinators(self.world)
        config = replace(LogDirsConfig(), transaction_max_timeout_ms=1000)
        self.chore = StaleTransactions(
            self.world.host, config, self.world.clock, self.world.metrics.log, self.coordinators
        )
        old = open_transaction(7, timestamp=NOW_MS - 2000)
        self.world.partition.append(old, ACKS_ALL, NOW_MS, origin=AppendOrigin.TRANSACTION)

    async def rounds(self, count: int) -> tuple[bool, int]:
        """Whether the transaction is still open, and how many are counted as hanging."""
        for _ in range(count):
            await self.chore.check()
        is_open = self.world.partition.stable_offset() == 0
        return is_open, self.world.metrics.log.hanging_transactions


async def test_a_transaction_that_no_coordinator_knows_is_aborted_at_the_second_look() -> None:
    hanging = Hanging()
    assert await hanging.rounds(1) == (True, 0)
    assert await hanging.rounds(1) == (False, 0)
    log = hanging.world.partition.log
    assert [one.producer_id for one in log.aborted(0, log.end_offset)] == [7]
    assert hanging.world.metrics.log.hanging_aborted == 1
    assert await hanging.rounds(1) == (False, 0)


async def test_a_transaction_that_its_coordinator_will_end_is_left_alone() -> None:
    """Prepared for long, or decided with a marker that is late."""
    hanging = Hanging()
    hanging.coordinators.owned_now = {7: frozenset([TP])}
    assert await hanging.rounds(3) == (True, 0)
    assert hanging.coordinators.asked == [{7}] * 3


async def test_a_transaction_of_a_known_producer_is_counted_and_not_aborted() -> None:
    """Its coordinator may have committed it."""
    hanging = Hanging()
    hanging.coordinators.owned_now = {7: frozenset()}
    assert await hanging.rounds(3) == (True, 1)


async def test_nothing_is_aborted_while_a_coordinator_does_not_answer() -> None:
    hanging = Hanging()
    hanging.coordinators.owned_now = None
    assert await hanging.rounds(3) == (True, 0)


async def test_a_marker_that_comes_between_the_looks_is_the_end_of_it() -> None:
    hanging = Hanging()
    await hanging.rounds(1)
    hanging.coordinators.ends = 7
    assert (await hanging.rounds(1))[0] is False
    log = hanging.world.partition.log
    assert log.aborted(0, log.end_offset) == [] and hanging.world.metrics.log.hanging_aborted == 0


async def test_young_transactions_are_not_asked_about() -> None:
    hanging = Hanging()
    young = open_transaction(8, timestamp=NOW_MS - 500)
    hanging.world.partition.append(young, ACKS_ALL, NOW_MS, origin=AppendOrigin.TRANSACTION)
    await hanging.rounds(1)
    assert hanging.coordinators.asked == [{7}]


@pytest.mark.parametrize("state", [State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_a_coordinator_owns_what_it_will_end(state: State) -> None:
    txn = Transaction(7, 1, 1000, state, frozenset([TP]), 0, previous_producer_id=6, next_producer_id=8)
    assert merged([rows_of(txn, {6, 7, 8, 9})]) == {6: frozenset(), 7: frozenset([TP]), 8: frozenset()}
    assert merged([rows_of(replace(txn, state=State.COMPLETE_COMMIT), {7})]) == {7: frozenset()}
    assert merged([[[7, []]], [[7, [["t", 0]]]]]) == {7: frozenset([TP])}


async def test_owners_count_only_if_every_coordinator_has_answered() -> None:
    world = World()
    txn = Transaction(7, 1, 1000, State.ONGOING, frozenset([TP]), 0)

    class Shards:
        refuses = False

        def ready(self) -> list[tuple[int, None]]:
            return [(0, None)]

        def ask(self, index: int, request: object) -> ListReply:
            if self.refuses:
                raise NotCoordinator()
            return ListReply((("id", txn),))

    class Rpc:
        def answered_by(self, name: str, answerer: object) -> None: ...

    class Image:
        image = world.image

    async def abort(tp: TopicPartition, first_offset: int) -> None: ...

    shards = Shards()
    owners = TransactionOwners("t", 1, Image(), shards, Rpc(), world.clock, abort)  # type: ignore[arg-type]
    assert owners.exist and await owners.owned({7, 9}) == {7: frozenset([TP])}
    shards.refuses = True
    assert await owners.owned({7}) is None
