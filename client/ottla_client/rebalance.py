"""Plans which replicas move to which brokers: the smallest reasonable set of moves that balances a cluster. [P]

`plan` takes the placement and returns moves; it asks no broker and changes nothing. `ottla cluster rebalance` and the
operator call it, and the brokers carry the moves out (AlterPartitionReassignments).

**Must hold** (or `CannotPlace`, and no moves at all): every partition has its replication factor, on distinct
brokers; no replica is on a leaving broker; no replica comes to a cordoned, leaving or unknown broker.

**Goals**, in this order; a step for one goal never undoes a goal before it (`rebalance_goals.py`,
`rebalance_replicas.py` and `rebalance_sizes.py` have the steps):
 1. Racks: the replicas of each partition are spread over as many racks as possible, as evenly as possible. Ignored
    unless every broker that may receive replicas has a rack.
 2. Replicas: each broker has the same number of replicas, give or take one.
 3. Bytes: each broker is within `Goals.size_tolerance` of the average. Only this goal may be missed for economy: a
    step has to reduce the imbalance by a tenth of the bytes that it copies, so two almost equal partitions of 100 GB
    never change places.
 4. Leaders: each broker is the preferred leader (first replica) of the same number of partitions, give or take one.
    This copies nothing: it only changes the order of replicas.

The algorithm is a local search. First it repairs what must hold: it replaces each replica on a leaving broker and
adds or drops replicas until the replication factor is right. Then it takes single steps (one replica to another
broker, or two replicas that change places), each of which lowers the first of (crowded racks, uneven replicas, uneven
bytes) that it changes, until no step does. These are integers, so the search ends; the bytes that goal 3 copies are
at most ten times the imbalance that it started from. The candidates that a search evaluates are limited as well
(`Board.is_spent`): a search that reaches the limit, which none of those measured did, ends with fewer improvements, and
planning again continues. Otherwise every step depends on the placement alone, so the placement it
ends with, planned again, gives no moves. A replica that took several steps is one move, from its first broker to its
last; a replica that returns to its first broker is none.

Replicas on cordoned and unknown (offline) brokers stay, except for goal 1, and those brokers are not part of the
averages. Plan a dead broker as `leaving` to replace its replicas. Pinned partitions never move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ottla_client import rebalance_goals
from ottla_client.rebalance_board import Board, Broker, CannotPlace, Goals, Placed
from ottla_client.rebalance_replicas import even_replicas
from ottla_client.rebalance_sizes import even_sizes

__all__ = ["Broker", "CannotPlace", "Goals", "Load", "Move", "Placed", "applied", "loads", "plan"]


@dataclass(frozen=True, slots=True)
class Move:
    """New replicas of one partition, the preferred leader first."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    #: Bytes of one replica.
    size: int = 0

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(each for each in self.after if each not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(each for each in self.before if each not in self.after)

    @property
    def copied(self) -> int:
        """Bytes that the added replicas copy; 0 if only the order of the replicas changes."""
        return self.size * len(self.added)


@dataclass(frozen=True, slots=True)
class Load:
    replicas: int = 0
    #: Partitions that it is the preferred leader of.
    leaders: int = 0
    size: int = 0


def plan(
    brokers: Sequence[Broker],
    partitions: Sequence[Placed],
    *,
    replication: Mapping[str, int] | None = None,
    balance: bool = True,
    goals: Goals | None = None,
) -> list[Move]:
    """The moves, largest copies first.

    `replication` has new replication factors by topic. With `balance=False` only what must hold is repaired: the
    moves that a drain or a new replication factor needs, and no others.
    """
    board = Board(brokers, partitions, goals or Goals())
    rebalance_goals.repair(board, replication or {})
    if balance:
        settle(board)
    moves = [
        Move(each.topic, each.partition, each.replicas, tuple(after), each.size)
        for each, after in zip(board.partitions, board.replicas, strict=True)
        if tuple(after) != each.replicas
    ]
    return sorted(moves, key=lambda move: (-move.copied, move.topic, move.partition))


def settle(board: Board) -> None:
    """Improve the goals until no step does."""
    while any([rebalance_goals.spread_racks(board), even_replicas(board), even_sizes(board)]):
        pass
    rebalance_goals.even_leaders(board)


def applied(partitions: Iterable[Placed], moves: Iterable[Move]) -> list[Placed]:
    """The placement after the moves."""
    after = {(move.topic, move.partition): move.after for move in moves}
    return [
        replace(each, replicas=after.get((each.topic, each.partition), each.replicas)) for each in partitions
    ]


def loads(brokers: Iterable[Broker], partitions: Iterable[Placed]) -> dict[int, Load]:
    """What each broker holds; also brokers that are only named by replicas."""
    found = {each.id: Load() for each in brokers}
    for each in partitions:
        for position, broker in enumerate(each.replicas):
            load = found.get(broker, Load())
            found[broker] = Load(load.replicas + 1, load.leaders + (position == 0), load.size + each.size)
    return dict(sorted(found.items()))
