"""The placement during planning (`rebalance.py`): replicas, counts and bytes per broker, and what a step costs. [P]"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
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


class Board:
    """Partitions are numbered by their position in `partitions`, which are in order of their names."""

    def __init__(self, brokers: Sequence[Broker], partitions: Sequence[Placed], goals: Goals) -> None:
        self.partitions = sorted(partitions, key=lambda each: (each.topic, each.partition))
        self.replicas = [list(each.replicas) for each in self.partitions]
        self.sizes = [each.size for each in self.partitions]
        self.brokers = {each.id: each for each in brokers}
        #: Brokers that may receive replicas, and among which the load is balanced.
        self.active = sorted(each.id for each in brokers if not each.cordoned and not each.leaving)
        self._racks = _racks(brokers)
        self.count: Counter[int] = Counter()
        self.size: Counter[int] = Counter()
        #: broker -> topic -> partitions
        self.on: defaultdict[int, defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for index, replicas in enumerate(self.replicas):
            for broker in replicas:
                self._put(index, broker)
        self._goals = goals
        self.low = self.high = 0

    # ------------------------------------------------------------------ changes

    def replace(self, index: int, source: int, target: int) -> None:
        """Move a replica; the new one takes the position of the old one."""
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

    def crowding(self, replicas: Collection[int]) -> int:
        """Sum of the squares of the replicas per rack: least if they are spread evenly. 0 if racks are ignored."""
        if not self._racks:
            return 0
        racks = Counter(self._racks.get(broker, str(broker)) for broker in replicas)
        return sum(number * number for number in racks.values())

    def crowding_after(self, index: int, source: int | None, target: int | None) -> int:
        """The same for a partition, if `target` replaced `source`."""
        if not self._racks:
            return 0
        replicas = [each for each in self.replicas[index] if each != source]
        return self.crowding(replicas if target is None else [*replicas, target])

    def is_crowded(self, index: int) -> bool:
        """Whether two replicas share a rack."""
        return self.crowding(self.replicas[index]) > len(self.replicas[index])

    def fits(self, index: int, source: int, target: int) -> bool:
        """Whether a replica may move there, and racks stay as good."""
        replicas = self.replicas[index]
        if target in replicas or self.partitions[index].pinned:
            return False
        racks = self._racks
        if not racks or racks.get(source) == racks[target]:
            return True
        # `crowding` changes by 2 * (replicas in the target's rack - replicas in the source's rack + 1).
        here = [racks.get(each, str(each)) for each in replicas]
        return here.count(racks[target]) < here.count(racks.get(source, str(source)))

    # ------------------------------------------------------------------ bytes

    def set_bounds(self) -> None:
        """The bytes per broker to aim at; moves among active brokers do not change them."""
        average = sum(self.size[each] for each in self.active) // max(1, len(self.active))
        slack = max(int(average * self._goals.size_tolerance), self._goals.size_slack)
        self.low, self.high = average - slack, average + slack

    def uneven(self, size: int) -> int:
        """Bytes outside the bounds."""
        return max(0, size - self.high, self.low - size)

    def gain(self, source: int, target: int, moved: int) -> int:
        """Bytes by which a transfer between two brokers makes them less uneven."""
        before = self.uneven(self.size[source]) + self.uneven(self.size[target])
        return before - self.uneven(self.size[source] - moved) - self.uneven(self.size[target] + moved)

    @staticmethod
    def is_worth(gain: int, copied: int) -> bool:
        return gain > 0 and gain * _WORTH >= copied


def _racks(brokers: Sequence[Broker]) -> dict[int, str]:
    """Broker -> rack; empty if racks are ignored."""
    staying = {each.rack for each in brokers if not each.leaving}
    if "" in staying or len(staying) < 2:
        return {}
    return {each.id: each.rack or str(each.id) for each in brokers}
