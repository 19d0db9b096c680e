"""Moves a partition to other replicas: the steps, each from the current state only. [P]

A partition in motion has both lists in one key (rule 5). `replicas` holds the target replicas first, then those to
be removed; `adding` and `removing` say which are which:

    target   = replicas - removing      where the partition will be
    original = replicas - adding        where it was, and goes back to when the move is cancelled

A replica that an earlier, replaced target added is in both lists: it belongs to neither.

1. `toward` writes the target. The added replicas copy the log, outside the ISR.
2. The leader adds them to the ISR as they catch up. Nothing is removed before the last of them has joined.
3. `next_step` moves the leadership to a target replica, if the leader is to be removed.
4. The leader removes the other replicas from the ISR (`replication/leader.py` M8). It is this write that makes the
   next step safe: it proves that the leader, and not only its lease, was alive with an ISR of target replicas.
5. `next_step` writes the target as the replicas. The removed brokers delete their copies when they see it.

A cancelled move is a move to the original replicas, so it takes the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ottla_broker.controller.leaders import LiveBrokers
from ottla_broker.metadata.image import PartitionImage
from ottla_core.ids import NO_BROKER


def toward(partition: PartitionImage, target: Sequence[int]) -> PartitionImage | None:
    """The state that begins a move, or redirects one; None when it is on its way there, or is there already."""
    if partition.target == tuple(target):
        return None
    original = partition.original
    staying = [r for r in partition.replicas if r not in target]
    replicas = (*target, *staying)
    return replace(
        partition,
        replicas=replicas,
        adding=tuple(r for r in replicas if r not in original),
        removing=tuple(staying),
    )


def cancelled(partition: PartitionImage) -> PartitionImage | None:
    """The state that begins the way back; None when nothing moves."""
    return toward(partition, partition.original) if partition.is_moving else None


def next_step(partition: PartitionImage, live: LiveBrokers) -> PartitionImage | None:
    """Steps 3 and 5; None while the leader or a follower has something to do first, or nothing moves."""
    target = partition.target
    if not partition.is_moving or not partition.has_caught_up:
        return None
    if partition.leader not in target:
        return _led_by_target(partition, live)
    counted = {*partition.isr, *partition.elr, *partition.dropped, *partition.torn}
    if counted.isdisjoint(partition.removing):
        # A removed broker that has not seen this yet is fenced by the epoch. Else it would follow on, could be counted
        # when a later move adds it again, and would delete its log only then.
        epoch = partition.leader_epoch + bool(partition.removing)
        return replace(partition, replicas=target, adding=(), removing=(), leader_epoch=epoch)
    return None


def _led_by_target(partition: PartitionImage, live: LiveBrokers) -> PartitionImage | None:
    able = [r for r in partition.target if r in partition.isr and r in live.alive and r not in live.stopping]
    if partition.leader == NO_BROKER or not able:
        return None  # `reconcile` elects where there is no leader.
    return replace(partition, leader=able[0], leader_epoch=partition.leader_epoch + 1)
