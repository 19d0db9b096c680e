"""Which open transactions hang: decided from what leaders and coordinators answer."""

from __future__ import annotations

from typing import Any, cast

from ottla_client.leaders import Producers
from ottla_client.record import ActiveProducer
from ottla_client.transaction_admin import (
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
    open_transactions,
)
from ottla_core.ids import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW_MS = 1_000_000


def producer(producer_id: int, first_offset: int | None, last_ms: int = 0) -> ActiveProducer:
    return ActiveProducer(producer_id, 3, 9, last_ms, -1, first_offset)


class Clock:
    def wall_ms(self) -> int:
        return NOW_MS


class Cluster(TransactionAdmin):
    """Leaders that answer one thing after the other, and one coordinator."""

    def __init__(self, *answers: Producers, known: dict[str, tuple[int, tuple[TopicPartition, ...]]]) -> None:
        super().__init__(cast(Any, None), cast(Any, Clock()), 1.0)
        self._answers = list(answers)
        self._known = known

    async def describe_producers(self, partitions: Any) -> Producers:
        return self._answers.pop(0)

    async def list_transactions(
        self, states: Any, producer_ids: Any, min_duration_ms: int, prefix: str = ""
    ) -> list[TransactionListing]:
        return [
            TransactionListing(name, "Ongoing", number, 0)
            for name, (number, _) in self._known.items()
            if number in producer_ids
        ]

    async def describe_transactions(self, transactional_ids: Any) -> list[TransactionDescription]:
        made = []
        for name in transactional_ids:
            number, partitions = self._known[name]
            made.append(TransactionDescription(name, "Ongoing", number, 3, 60_000, 0, 1, partitions))
        return made


def test_young_and_ended_transactions_are_no_suspects() -> None:
    found = open_transactions({A: (producer(1, 5), producer(2, None), producer(3, 7, last_ms=100))}, 99)
    assert [(each.producer_id, each.first_offset) for each in found] == [(1, 5)]


async def test_a_transaction_hangs_where_its_coordinator_does_not_know_it() -> None:
    everywhere: Producers = {A: (producer(1, 5), producer(2, 6)), B: (producer(1, 8),)}
    cluster = Cluster(everywhere, everywhere, known={"billing": (1, (A,))})
    found = await cluster.find_hanging_transactions([A, B], 0)
    assert [(each.partition, each.producer_id, each.first_offset) for each in found] == [(A, 2, 6), (B, 1, 8)]


async def test_a_transaction_that_ended_meanwhile_does_not_hang() -> None:
    before: Producers = {A: (producer(1, 5), producer(2, 6))}
    after: Producers = {A: (producer(1, None), producer(2, 9))}
    assert await Cluster(before, after, known={}).find_hanging_transactions([A], 0) == []


async def test_young_transactions_are_left_alone() -> None:
    young: Producers = {A: (producer(1, 5, last_ms=NOW_MS - 10),)}
    assert await Cluster(young, known={}).find_hanging_transactions([A], 11) == []
    (found,) = await Cluster(young, young, known={}).find_hanging_transactions([A], 10)
    assert found.first_offset == 5
