"""Election of a partition's leader. [P]

A leader comes from the ISR, else from the ELR (replicas that left an ISR which was already too small: they
hold every committed record), and from nowhere else unless the topic allows an unclean election. A replica is
torn when the tail of its log may be missing (design rule 2). While a whole replica is online, or may come back,
torn ones are not elected; they stay in their lists, marked, until a whole one leads. When all of ISR
and ELR are torn, all must be online and their positions known, and the greatest (last epoch, end offset) is elected.
Every state made by this module has a new leader epoch, so no leadership is ever resumed.

An elected broker may be dead already, with a live lease and a torn log. So replicas that an election drops stay on
record (`dropped`) until the leader has written something, and belong to that "all" until then (decision 9).

Called by `leaders.py` only; the planner turns the state into a compare-and-set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from ottla_broker.metadata.image import PartitionImage
from ottla_core.ids import NO_BROKER

#: (last epoch, end offset) of a replica's log.
Position: TypeAlias = tuple[int, int]


def elect(
    partition: PartitionImage,
    *,
    alive: Collection[int],
    torn: Collection[int] = (),
    reluctant: Collection[int] = (),
    min_insync: int = 1,
    unclean: bool = False,
    positions: Mapping[int, Position] | None = None,
) -> PartitionImage:
    """The partition's next state, with the next epoch; its leader is NO_BROKER when none may be elected now.

    `torn` are those found torn now, besides those marked already. `reluctant` brokers lead only if no other
    can: those that were just restarted, or are about to stop.
    """
    safe = safe_replicas(partition)
    marked = tuple(r for r in safe if r in torn or r in partition.torn)
    whole = [r for r in safe if r not in marked]
    here = [r for r in partition.isr if r in alive and r in whole]
    if here:
        leader = _preferred(partition, here, reluctant)
        # Replicas that leave an ISR below min.insync.replicas go to the ELR; a large enough ISR needs no ELR.
        elr = () if len(here) >= min_insync else tuple(r for r in whole if r not in here)
        return _led(partition, leader, tuple(here), elr)
    # Rule 7: the first of the ELR leads. All others of ISR and ELR stay eligible.
    leader = _preferred(partition, [r for r in whole if r in alive], reluctant)
    if leader != NO_BROKER:
        elr = tuple(r for r in whole if r != leader)
        return _led(partition, leader, (leader,), elr)
    if not whole:
        leader = _longest(on_record(partition), alive, positions or {})
    if leader == NO_BROKER and unclean:
        leader = _preferred(partition, [r for r in safe if r in alive], reluctant)
        if leader == NO_BROKER:
            # An added replica that has not caught up may hold next to nothing.
            leader = _preferred(partition, [r for r in partition.original if r in alive], reluctant)
    if leader != NO_BROKER:
        return _led(partition, leader, (leader,), ())
    return replace(partition, leader_epoch=partition.leader_epoch + 1, leader=NO_BROKER, torn=marked)


def _led(
    partition: PartitionImage, leader: int, isr: tuple[int, ...], elr: tuple[int, ...]
) -> PartitionImage:
    made = replace(partition, leader_epoch=partition.leader_epoch + 1, leader=leader, torn=())
    return with_sets(made, isr, elr)


def with_sets(partition: PartitionImage, isr: tuple[int, ...], elr: tuple[int, ...]) -> PartitionImage:
    """New sets, with a record of dropped replicas: their leader may be dead, and all the others torn."""
    dropped = tuple(r for r in on_record(partition) if r not in isr and r not in elr)
    return replace(partition, isr=isr, elr=elr, dropped=dropped)


def safe_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """ISR, then ELR: those that hold every committed record."""
    return (*partition.isr, *(r for r in partition.elr if r not in partition.isr))


def on_record(partition: PartitionImage) -> tuple[int, ...]:
    """ISR, ELR, and the replicas that a controller dropped from them."""
    safe = safe_replicas(partition)
    return (*safe, *(r for r in partition.dropped if r not in safe))


def _longest(known: tuple[int, ...], alive: Collection[int], positions: Mapping[int, Position]) -> int:
    """Rule 2: all replicas on record are torn. Wait for every one of them, then elect the longest log."""
    alone = len(known) == 1
    if not known or any(r not in alive or not (alone or r in positions) for r in known):
        return NO_BROKER
    return max(known, key=lambda r: (positions.get(r, (0, 0)), -known.index(r)))


def _preferred(partition: PartitionImage, candidates: Collection[int], reluctant: Collection[int]) -> int:
    ranked = sorted(
        (r for r in partition.replicas if r in candidates), key=lambda r: r in reluctant
    )  # stable: replica order within each half
    return ranked[0] if ranked else NO_BROKER
