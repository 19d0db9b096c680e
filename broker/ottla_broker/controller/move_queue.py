"""Which waiting moves begin now: a broker copies a bounded number of partitions at once. [P]

Only the caretaker of the active controller begins moves that copy something, so the bound holds whatever clients ask
for: every broker has at most its limit of added replicas that are not in sync yet. Replicas in sync, and those of a
partition without a leader, do not count: they copy nothing. (A replica that falls out of the in-sync set and a leader
that returns can therefore exceed the limit; nothing begins there until they are done.)

Everything that waits is in the partition's key (`PartitionImage.planned`), so the next controller goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from ottla_broker.controller.reassignment import new_copies, toward
from ottla_broker.metadata.image import PartitionImage
from ottla_core.ids import NO_BROKER

K = TypeVar("K")


def begun(moves: Mapping[K, PartitionImage], limit_of: Callable[[int], int]) -> dict[K, PartitionImage]:
    """The new states of those moves that may begin; the first come first. `moves` are all that move or wait.

    A move that needs a place on two brokers begins when both have one.
    """
    busy = Counter(broker for state in moves.values() for broker in state.copying)
    made: dict[K, PartitionImage] = {}
    for key, state in moves.items():
        if not state.planned or any(
            r not in state.replicas and busy[r] >= limit_of(r) for r in state.planned
        ):
            continue
        next_state = toward(state, state.planned)
        if next_state is None:
            continue
        added = new_copies(state, next_state)
        if added and (state.leader == NO_BROKER or any(busy[r] >= limit_of(r) for r in added)):
            continue
        busy.subtract(state.copying)
        busy.update(next_state.copying)
        made[key] = next_state
    return made
