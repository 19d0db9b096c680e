"""Carrying out moves while brokers die and topics vanish, against an `Admin` that answers from a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla_client import carry_out
from ottla_client.admin import Admin
from ottla_client.carry_out import Carried, CarryOut
from ottla_client.cluster_admin import AddedReplica, PartitionOutcome, Reassignment
from ottla_client.errors import CannotConnect, RequestError
from ottla_client.rebalance import Move
from ottla_core.errors import InvalidReplicaAssignment, NotController, UnknownTopicOrPartition
from ottla_core.ids import TopicPartition

A, B, C = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))
MOVES = [Move(tp.topic, tp.partition, (1, 2), (1, 3), size=100) for tp in (A, B, C)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Brokers:
    """Each requested move takes `takes_s`; `trouble` is called before each answer and may raise."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.replicas = dict.fromkeys((A, B, C), (1, 2))
        self.arrive_at: dict[TopicPartition, float] = {}
        self.refusals: dict[TopicPartition, list[RequestError]] = {}
        self.trouble: Callable[[str], None] = lambda _: None
        self.requested: list[list[TopicPartition]] = []
        self.elected: list[TopicPartition] = []

    def _moving(self) -> list[TopicPartition]:
        for tp in [each for each, at in self.arrive_at.items() if at <= self.clock.now]:
            del self.arrive_at[tp]
            self.replicas[tp] = (1, 3)
        return list(self.arrive_at)

    async def alter_partition_reassignments(
        self, targets: dict[TopicPartition, Any]
    ) -> list[PartitionOutcome]:
        self.requested.append(list(targets))
        self.trouble("alter")
        outcomes = []
        for tp in targets:
            error = self.refusals[tp].pop(0) if self.refusals.get(tp) else None
            if tp not in self.replicas:
                error = UnknownTopicOrPartition("gone")
            if error is None:
                self.arrive_at[tp] = self.clock.now + 5
            outcomes.append(PartitionOutcome(tp, error))
        return outcomes

    async def list_partition_reassignments(self) -> list[Reassignment]:
        self.trouble("list")
        return [
            Reassignment(tp, (1, 3, 2), (3,), (2,), (AddedReplica(3, False, 40, 100),))
            for tp in self._moving()
        ]

    async def describe_topics(self) -> list[Any]:
        self._moving()
        found: dict[str, list[Any]] = {}
        for tp, replicas in self.replicas.items():
            found.setdefault(tp.topic, []).append((tp.partition, replicas))
        return [
            SimpleNamespace(
                name=name, partitions=[SimpleNamespace(partition=n, replicas=some) for n, some in each]
            )
            for name, each in found.items()
        ]

    async def elect_leaders(self, partitions: list[TopicPartition]) -> None:
        self.elected = partitions


@pytest.fixture
def brokers() -> Brokers:
    return Brokers(Clock())


def run(brokers: Brokers, seen: list[tuple[int, int]] | None = None) -> Carried:
    progress = (lambda left, moving: seen.append((left, moving))) if seen is not None else lambda *_: None
    work = CarryOut(cast(Admin, brokers), cast(Any, brokers.clock), MOVES, on_progress=progress)
    return asyncio.run(work.run())


def failing(method: str, times: int) -> Callable[[str], None]:
    left = [times]

    def trouble(called: str) -> None:
        if called == method and left[0]:
            left[0] -= 1
            raise CannotConnect("The broker has died.")

    return trouble


def test_all_moves_are_requested_at_once_and_watched_until_they_arrive(brokers: Brokers) -> None:
    seen: list[tuple[int, int]] = []
    assert run(brokers, seen) == Carried()
    assert brokers.requested == [[A, B, C]]
    assert seen[0] == (180, 3) and seen[-1] == (0, 0)
    assert brokers.elected == [A, B, C]


@pytest.mark.parametrize("method", ["alter", "list"])
def test_a_broker_that_dies_in_a_call_ends_nothing(brokers: Brokers, method: str) -> None:
    brokers.trouble = failing(method, 3)
    assert run(brokers) == Carried()
    assert set(brokers.replicas.values()) == {(1, 3)}


def test_errors_that_do_not_end_are_raised_after_a_while(brokers: Brokers) -> None:
    brokers.trouble = failing("list", 10**6)
    with pytest.raises(CannotConnect):
        run(brokers)
    assert brokers.clock.now < 2 * carry_out.PATIENCE_S


def test_a_topic_that_is_deleted_before_or_during_its_move_is_left_out(brokers: Brokers) -> None:
    del brokers.replicas[C]

    def delete_b(called: str) -> None:
        if called == "list" and brokers.clock.now >= 2:
            brokers.arrive_at.pop(B, None)
            brokers.replicas.pop(B, None)

    brokers.trouble = delete_b
    assert run(brokers) == Carried(vanished=[C, B])
    assert brokers.replicas == {A: (1, 3)}


def test_one_refused_partition_does_not_keep_the_others_from_moving(brokers: Brokers) -> None:
    refusal = InvalidReplicaAssignment("Broker 3 is cordoned.")
    brokers.refusals = {A: [refusal], B: [NotController("not me"), NotController("nor me")]}
    assert run(brokers) == Carried(refused={A: refusal})
    assert brokers.requested == [[A, B, C], [B], [B]]
    assert brokers.replicas == {A: (1, 2), B: (1, 3), C: (1, 3)}


def test_a_cancelled_move_is_reported_and_not_requested_again(brokers: Brokers) -> None:
    def cancel_b(called: str) -> None:
        if called == "list":
            brokers.arrive_at.pop(B, None)

    brokers.trouble = cancel_b
    assert run(brokers) == Carried(elsewhere=[B])
    assert brokers.requested == [[A, B, C]]
    assert brokers.elected == [A, C]
