"""Bugs to plant: each breaks one rule of the design in the shipped code, in as few words as it takes.

A simulation that finds nothing may be blind. `test_planted.py` shows for each of these that some seed, and not a rare
one, breaks an invariant; with them taken out again the same seeds pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla_broker.broker import Broker
from ottla_broker.controller import backend, isr_writer, leaders, planner
from ottla_broker.controller.image import PartitionImage
from ottla_broker.partition.following import Following
from ottla_broker.partition.partition import Partition
from ottla_broker.replication import leader
from ottla_broker.replication.leader import Leader
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import Branch

Plant = Callable[[pytest.MonkeyPatch], None]
#: By name, with a seed that finds it.
PLANTED: dict[str, tuple[Plant, int]] = {}


def planted(*, seed: int) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        PLANTED[plant.__name__] = plant, seed
        return plant

    return note


# ---------------------------------------------------------------------- rules 1 to 3: restarts


@planted(seed=3)
def rule_1_a_broker_leads_before_it_is_admitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "_is_admitted", lambda self, image: True)


@planted(seed=5)
def rule_2_a_torn_log_is_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planner, "_is_whole", lambda broker, member: member is not None)


@planted(seed=8)
def rule_3_a_leadership_is_resumed_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    shipped = planner.after_return

    def resumed(partition: PartitionImage, arriving: Any, torn: Any, here: Any, policy: Any) -> Any:
        if partition.leader in arriving and partition.leader not in torn:
            return None
        return shipped(partition, arriving, torn, here, policy)

    patch.setattr(planner, "after_return", resumed)


# ---------------------------------------------------------------------- rules 5 to 8: in-sync sets


@planted(seed=3)
def rule_5_an_isr_is_written_without_a_compare(patch: pytest.MonkeyPatch) -> None:
    shipped = isr_writer._Proposal
    patch.setattr(
        isr_writer, "_Proposal", lambda key, wanted, guard, outcome: shipped(key, wanted, (), outcome)
    )


@planted(seed=25)
def rule_5_a_controller_writes_without_compares(patch: pytest.MonkeyPatch) -> None:
    async def unfenced(store: Any, epoch: int, stage: Any) -> list[Any]:
        return [await store.transact((), [Branch((), branch.writes) for branch in stage.branches])]

    patch.setattr(backend, "_write_stage", unfenced)


@planted(seed=10)
def rule_6_a_proposed_isr_counts_before_the_store_agrees(patch: pytest.MonkeyPatch) -> None:
    shipped = leader.committed
    patch.setattr(
        leader,
        "committed",
        lambda now, positions, isr, proposed, least: shipped(now, positions, proposed or isr, None, least),
    )


@planted(seed=1)
def rule_6_acknowledged_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        leader,
        "committed",
        lambda now, positions, isr, proposed, least: max(now, *positions.values()),
    )


@planted(seed=11)
def rule_7_the_watermark_moves_below_min_insync(patch: pytest.MonkeyPatch) -> None:
    shipped = leader.committed
    patch.setattr(
        leader,
        "committed",
        lambda now, positions, isr, proposed, least: shipped(now, positions, isr, proposed, 0),
    )
    advance = Leader._advance

    def heedless(self: Any) -> Any:
        image = self.image
        self.image = _without_elr(image)
        try:
            return advance(self)
        finally:
            self.image = image

    patch.setattr(Leader, "_advance", heedless)


def _without_elr(image: PartitionImage) -> PartitionImage:
    return PartitionImage(image.replicas, image.leader, image.leader_epoch, image.isr)


@planted(seed=5)
def rule_7_a_leader_from_outside_the_isr(patch: pytest.MonkeyPatch) -> None:
    shipped = leaders.policy_of
    patch.setattr(
        planner, "policy_of", lambda topic, defaults: shipped(topic, defaults)._replace(unclean=True)
    )


@planted(seed=1)
def rule_8_a_follower_enters_below_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_is_ready", lambda self, broker_id: broker_id in self._positions)


# ---------------------------------------------------------------------- rules 9 to 11: positions, epochs, waiters


@planted(seed=30)
def rule_9_a_position_outlives_its_stream(patch: pytest.MonkeyPatch) -> None:
    def count(self: Any, broker_id: int, follower: Any) -> None:
        self._positions[broker_id] = follower.position

    patch.setattr(Leader, "_forget", lambda self, broker_id, follower: None)
    patch.setattr(Leader, "_count", count)


@planted(seed=3)
def rule_9_a_position_counts_whatever_the_lineage(patch: pytest.MonkeyPatch) -> None:
    shipped = leader.agrees
    patch.setattr(
        leader,
        "agrees",
        lambda entries, end, epoch, offset: None if offset <= end else shipped(entries, end, epoch, offset),
    )


@planted(seed=2)
def rule_9_a_log_is_not_cut_where_it_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_truncate", lambda self, offset: None)


@planted(seed=1)
def rule_9_a_log_is_cut_to_its_own_high_watermark(patch: pytest.MonkeyPatch) -> None:
    shipped = Partition.resign

    def cut(self: Any, image: PartitionImage) -> None:
        before = self.following
        shipped(self, image)
        if self.following is not None and self.following is not before and image.leader != NO_BROKER:
            self.log.truncate_to(max(self.log.start_offset, self.high_watermark), now_ms=self.wall_ms())

    patch.setattr(Partition, "resign", cut)


@planted(seed=13)
def rule_11_a_waiter_outlives_its_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_release", lambda self, error: self._wake_readers())
