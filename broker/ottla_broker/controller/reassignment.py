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

Before step 1 a move may have to wait (`wished`), because a broker copies a bounded number of partitions at once. Its
target is then in `planned`, and nothing else has changed: the partition stands still, or goes on with the move that
this one replaces. `move_queue.py` chooses who begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ottla_broker.controller.leaders import LiveBrokers
from ottla_broker.metadata.image import PartitionImage
from ottla_core.ids import NO_BROKER


def wished(partition: PartitionImage, target: Sequence[int]) -> PartitionImage | None:
    """The state after a request to move: begun, if no broker has to copy anything more for it, else waiting; None if
    nothing is to be done."""
    if partition.wanted == tuple(target):
        return None
    begun = toward(partition, target)
    if begun is None:
        return replace(partition, planned=())  # Back to the move that is under way.
    return replace(partition, planned=tuple(target)) if new_copies(partition, begun) else begun


def new_copies(before: PartitionImage, begun: PartitionImage) -> tuple[int, ...]:
    """The brokers that have to copy the log for a move that begins, and did not before."""
    arriving = [r for r in before.adding if r not in before.removing]
    return tuple(
        r for r in begun.adding if r not in begun.removing and r not in begun.isr and r not in arriving
    )


def announced(partition: PartitionImage) -> PartitionImage:
    """As clients see it: a move that waits is listed with what it will add and remove, as if it had begun."""
    return toward(partition, partition.planned) or partition if partition.planned else partition


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
        planned=(),
    )


def cancelled(partition: PartitionImage) -> PartitionImage | None:
    """The state that begins the way back; None when nothing moves."""
    if partition.is_moving:
        return toward(partition, partition.original) or _stay(partition)
    return _stay(partition)


def _stay(partition: PartitionImage) -> PartitionImage | None:
    return replace(partition, planned=()) if partition.planned else None


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
