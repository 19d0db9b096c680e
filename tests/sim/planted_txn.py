"""Bugs in transactions to plant, as in `planted.py`: against rule 21, and against what clients rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla_broker.group.shard import GroupShard
from ottla_broker.log.producers import ProducerStates
from ottla_broker.partition.partition import Partition
from ottla_broker.requests import ProducerIdentity
from ottla_broker.service.transaction_owners import TransactionOwners
from ottla_broker.service.transactions import TransactionService
from ottla_broker.service.txn_markers import TransactionMarkers
from ottla_broker.service.txn_verifying import TransactionVerifying
from ottla_broker.txn import machine
from ottla_broker.txn.messages import EndTransaction, MarkersWritten, WriteMarkers
from ottla_broker.txn.transaction import Transaction
from sim.shape import Shape

Plant = Callable[[pytest.MonkeyPatch], None]
WITH_TRANSACTIONS = Shape(is_transactional=True)

WITH_WRONG_CLOCKS = Shape(is_transactional=True, skew_ms=3_600_000)

#: Each with a seed that finds it, the nemesis that alone is drawn in its worlds, if any, and their shape.
PLANTS: dict[str, tuple[Plant, int, str | None, Shape]] = {}


def planted(
    seed: int, nemesis: str | None = None, shape: Shape = WITH_TRANSACTIONS
) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        PLANTS[plant.__name__] = plant, seed, nemesis, shape
        return plant

    return note


@planted(1)
def rule_21_a_first_batch_is_not_verified(patch: pytest.MonkeyPatch) -> None:
    async def ask(self: Any, name: str, producer: Any, partitions: Any, adds: bool) -> Any:
        return [None] * len(partitions)

    patch.setattr(TransactionVerifying, "_ask", ask)


@planted(1)
def rule_21_a_marker_comes_again_after_the_next_transaction_began(patch: pytest.MonkeyPatch) -> None:
    shipped = TransactionMarkers.deliver

    async def deliver(self: Any, effect: WriteMarkers, epoch: int) -> MarkersWritten:
        written = await shipped(self, effect, epoch)

        async def again() -> None:
            await self._clock.sleep(0.3)
            await shipped(self, effect, epoch)

        asyncio.get_running_loop().create_task(again())
        return written

    patch.setattr(TransactionMarkers, "deliver", deliver)


@planted(1)
def rule_21_a_fenced_producer_writes(patch: pytest.MonkeyPatch) -> None:
    """Neither its partition nor its coordinator compares the epoch."""
    shipped = machine._open_to

    def open_to(txn: Transaction | None, producer: ProducerIdentity) -> Transaction:
        return shipped(txn, producer if txn is None else producer._replace(producer_epoch=txn.producer_epoch))

    patch.setattr(machine, "_open_to", open_to)
    patch.setattr(ProducerStates, "_check_epoch", lambda self, header, known: None)


@planted(2)
def a_partition_gets_no_marker(patch: pytest.MonkeyPatch) -> None:
    """Markers that could not be written at the first attempt are forgotten."""
    shipped = TransactionMarkers._deliver_once

    async def once(self: Any, marker: Any, partitions: Any) -> frozenset[Any]:
        await shipped(self, marker, partitions)
        return frozenset()

    patch.setattr(TransactionMarkers, "_deliver_once", once)


@planted(1)
def read_committed_reads_up_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "stable_offset", lambda self: self.high_watermark)


@planted(1)
def offsets_of_an_aborted_transaction_are_committed(patch: pytest.MonkeyPatch) -> None:
    shipped = GroupShard.replay_marker
    patch.setattr(
        GroupShard, "replay_marker", lambda self, marker: shipped(self, marker._replace(commits=True))
    )


@planted(1)
def a_prepared_transaction_times_out(patch: pytest.MonkeyPatch) -> None:
    shipped = machine.prepare

    def prepare(txn: Any, request: Any, now_ms: int) -> Any:
        made = shipped(txn, request, now_ms)
        return None if made is None else replace(made, timeout_ms=txn.timeout_ms)

    patch.setattr(machine, "prepare", prepare)


@planted(10, nemesis="lone coordinator")
def a_repeated_end_ends_the_next_transaction(patch: pytest.MonkeyPatch) -> None:
    """With transactions v2 an end keeps the epoch, and one that comes again is taken for one of now."""
    shipped = machine.end

    def end(txn: Any, request: EndTransaction, now_ms: int) -> Any:
        if txn is not None and txn.is_ongoing and txn.producer_id == request.producer.producer_id:
            producer = request.producer._replace(producer_epoch=txn.producer_epoch)
            request = replace(request, producer=producer)
        return shipped(txn, request, now_ms)

    patch.setattr(machine, "end", end)


@planted(1, nemesis="unseen topic")
def rule_21_a_partition_is_added_that_its_coordinator_does_not_know(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionService, "_shows", lambda self, tp, topic_id: True)


@planted(1, shape=WITH_WRONG_CLOCKS)
def an_old_transaction_is_aborted_although_its_coordinator_knows_it(patch: pytest.MonkeyPatch) -> None:
    async def owned(self: Any, producer_ids: Any) -> Any:
        return {}

    patch.setattr(TransactionOwners, "owned", owned)
