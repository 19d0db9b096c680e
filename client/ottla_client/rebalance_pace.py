"""The state of moves: what a cluster's placement is now, and which moves may start. [P]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ottla_client.rebalance import Broker, Move, Placed
from ottla_core.ids import TopicPartition

#: Copies that one broker receives at the same time. A copy is one TCP stream of large reads; a few of them use a disk
#: or a network card fully, and more only make each of them slower.
COPIES_PER_BROKER = 4


@dataclass(frozen=True, slots=True)
class Ongoing:
    """A partition that moves now."""

    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    #: Bytes of the added replicas so far, and at the end; estimates.
    copied: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the replicas of a cluster are. A partition that moves is in `partitions` with the replicas it moves to."""

    brokers: tuple[Broker, ...]
    online: frozenset[int]
    partitions: tuple[Placed, ...]
    moving: Mapping[tuple[str, int], Ongoing] = field(default_factory=dict)

    def planned(self, leaving: Collection[int] = ()) -> list[Broker]:
        """The brokers for the planner. An offline broker cannot receive a copy, so it counts as cordoned."""
        return [
            Broker(each.id, each.rack, each.cordoned or each.id not in self.online, each.id in leaving)
            for each in self.brokers
        ]

    def held_by(self, broker: int) -> int:
        """Replicas that the broker has, also those that are being removed."""
        return sum(
            broker in each.replicas or broker in self._ongoing(each).removing for each in self.partitions
        )

    def leaving(self, broker: int) -> set[TopicPartition]:
        """Partitions that are moving away from the broker."""
        return {TopicPartition(*tp) for tp, each in self.moving.items() if broker in each.removing}

    def _ongoing(self, placed: Placed) -> Ongoing:
        return self.moving.get((placed.topic, placed.partition), _STILL)


_STILL = Ongoing()


def next_moves(
    pending: Sequence[Move], moving: Mapping[tuple[str, int], Ongoing], limit: int = COPIES_PER_BROKER
) -> list[Move]:
    """The moves to start now, so that no broker receives more than `limit` copies. Moves without copies all start."""
    receiving = Counter(broker for each in moving.values() for broker in each.adding)
    chosen = []
    for move in pending:
        if (move.topic, move.partition) in moving or any(receiving[b] >= limit for b in move.added):
            continue
        receiving.update(move.added)
        chosen.append(move)
    return chosen
