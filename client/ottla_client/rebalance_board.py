"""The placement during planning (`rebalance.py`): replicas, counts and bytes per broker, and what a step costs. [P]"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


class CannotPlace(ValueError):
    """The brokers cannot hold all replicas; one sentence."""


@dataclass(frozen=True, slots=True)
class Broker:
    id: int
    #: Empty: unknown.
    rack: str = ""
    #: Keeps its replicas, receives none.
    cordoned: bool = False
    #: Ends without replicas.
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """A partition and its replicas; of a partition that moves, the replicas that it moves to."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    #: Bytes of one replica.
    size: int = 0
    #: Its placement is declared elsewhere; it never moves.
    pinned: bool = False

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Goals:
    #: Share of the average by which a broker may have more or fewer bytes. Partitions grow while they are copied, so
    #: a much smaller one would never be reached.
    size_tolerance: float = 0.1
    #: The same in bytes; the larger one counts. Less than this is copied in a second and not worth a move.
    size_slack: int = 64 << 20


#: A step has to improve the balance by at least one of this many bytes that it copies.
_WORTH = 10
#: And by this part of the bytes of an average replica, so that the number of steps does not depend on the bytes.
_LEAST = 16
#: Candidates that a search may evaluate, per replica and in addition. Skewed clusters need 5 to 20 per replica
#: with 12 brokers, 150 with 50; a search that is still not complete then ends with what it has.
_EVALUATED_PER_REPLICA, _EVALUATED = 300, 1_000_000


class Board:
    """Partitions are numbered by their position in `partitions`, which are in order of their names."""

    def __init__(self, brokers: Sequence[Broker], partitions: Sequence[Placed], goals: Goals) -> None:
        self.partitions = sorted(partitions, key=lambda each: (each.topic, each.partition))
        self.replicas = [list(each.replicas) for each in self.partitions]
        self.sizes = [each.size for each in self.partitions]
        self.brokers = {each.id: each for each in brokers}
        #: Brokers that may receive replicas, and among which the load is balanced.
        self.active = sorted(each.id for each in brokers if not each.cordoned and not each.leaving)
        self._racks = _racks(brokers, self.replicas)
        self.count: Counter[int] = Counter()
        self.size: Counter[int] = Counter()
        #: broker -> topic -> partitions
        self.on: defaultdict[int, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for index, replicas in enumerate(self.replicas):
            for broker in replicas:
                self._put(index, broker)
        self._goals = goals
        self.low = self.high = self._least = 0
        #: Steps taken and candidates evaluated: the cost of the search.
        self.steps = self.evaluated = 0
        self._evaluated_max = _EVALUATED + _EVALUATED_PER_REPLICA * sum(self.count.values())

    def is_spent(self) -> bool:
        """Whether the search has to end, complete or not."""
        return self.evaluated >= self._evaluated_max

    # ------------------------------------------------------------------ changes

    def replace(self, index: int, source: int, target: int) -> None:
        """Move a replica; the new one takes the position of the old one."""
        self.steps += 1
        replicas = self.replicas[index]
        replicas[replicas.index(source)] = target
        self._take(index, source)
        self._put(index, target)

    def add(self, index: int, target: int) -> None:
        self.replicas[index].append(target)
        self._put(index, target)

    def drop(self, index: int, source: int) -> None:
        self.replicas[index].remove(source)
        self._take(index, source)

    def _put(self, index: int, broker: int) -> None:
        self.count[broker] += 1
        self.size[broker] += self.sizes[index]
        self.on[broker][self.partitions[index].topic].add(index)

    def _take(self, index: int, broker: int) -> None:
        self.count[broker] -= 1
        self.size[broker] -= self.sizes[index]
        topic = self.partitions[index].topic
        self.on[broker][topic].discard(index)
        if not self.on[broker][topic]:
            del self.on[broker][topic]

    # ------------------------------------------------------------------ racks

    def rack(self, broker: int) -> str:
        """Empty if racks are ignored."""
        return self._racks.get(broker, "")

    def per_rack(self, index: int) -> Counter[str]:
        """Replicas of a partition per rack; empty if racks are ignored.

        The replicas are spread evenly if the sum of the squares is least. A replica that goes from a rack with n of
        them to one with m changes it by 2 * (m - n + 1).
        """
        return Counter(self._racks[each] for each in self.replicas[index]) if self._racks else Counter()

    def is_crowded(self, index: int) -> bool:
        """Whether two replicas share a rack."""
        racks = self._racks
        if not racks:
            return False
        replicas = self.replicas[index]
        return len({racks[each] for each in replicas}) < len(replicas)

    def fits(self, index: int, source: int, target: int) -> bool:
        """Whether a replica may move there, and racks stay as good."""
        self.evaluated += 1
        replicas = self.replicas[index]
        if target in replicas or self.partitions[index].pinned:
            return False
        racks = self._racks
        if not racks:
            return True
        old, new = racks[source], racks[target]
        if old == new:
            return True
        more = 0
        for each in replicas:
            rack = racks[each]
            if rack == new:
                more += 1
            elif rack == old:
                more -= 1
        return more < 0

    # ------------------------------------------------------------------ bytes

    def set_bounds(self) -> None:
        """The bytes per broker to aim at; moves among active brokers do not change them."""
        average = sum(self.size[each] for each in self.active) // max(1, len(self.active))
        slack = max(int(average * self._goals.size_tolerance), self._goals.size_slack)
        self.low, self.high = average - slack, average + slack
        replicas = sum(self.count[each] for each in self.active)
        self._least = max(1, average * len(self.active) // max(1, replicas * _LEAST))

    def uneven(self, size: int) -> int:
        """Bytes outside the bounds."""
        return max(0, size - self.high, self.low - size)

    def gain(self, source: int, target: int, moved: int) -> int:
        """Bytes by which a transfer between two brokers makes them less uneven."""
        self.evaluated += 1
        before = self.uneven(self.size[source]) + self.uneven(self.size[target])
        return before - self.uneven(self.size[source] - moved) - self.uneven(self.size[target] + moved)

    def is_worth(self, gain: int, copied: int) -> bool:
        return gain >= self._least and gain * _WORTH >= copied


def _racks(brokers: Sequence[Broker], placed: Sequence[Sequence[int]]) -> dict[int, str]:
    """Broker -> rack. Empty if racks are ignored: a broker that may receive replicas has none, or all are in one rack.

    An unknown broker, and one that only keeps its replicas and whose rack is unknown, is a rack of its own.
    """
    staying = {each.rack for each in brokers if not each.leaving}
    receiving = {each.rack for each in brokers if not each.leaving and not each.cordoned}
    if "" in receiving or len(staying) < 2:
        return {}
    # No rack can have this name by chance: brokers 1 to 3 may well be in racks "1" to "3".
    own = {each: f"broker {each}" for replicas in placed for each in replicas}
    return own | {each.id: each.rack or f"broker {each.id}" for each in brokers}
