"""The planner's goal of even replicas (`rebalance.py`): each broker has the same number, give or take one. [P]

A step moves a replica from the broker with the most replicas to the one with the fewest that may get one of them, so
the sum of the squares of the counts falls with each step. A pair of brokers is searched once: a replica that may not
move between them is only looked at again when a step changed its partition. Without that, a broker that must keep what
it has (the only one of its rack) is searched in vain before every step.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from ottla_client.rebalance_board import Board

#: Replicas that one step compares; more of the same topic differ little.
_CANDIDATES = 32


def even_replicas(board: Board) -> bool:
    """Whether it changed the board."""
    board.set_bounds()
    search = _Search(board)
    changed = False
    while not board.is_spent() and (step := search.step()) is not None:
        board.replace(*step)
        search.follow(*step)
        changed = True
    return changed


class _Search:
    def __init__(self, board: Board) -> None:
        self._board = board
        #: (source, target) -> heap of (how much worse the target is off, topic). Every topic with a replica that may
        #: move is in it; a number may be too low, and is corrected when the topic is next.
        self._topics: dict[tuple[int, int], list[tuple[int, str]]] = {}
        #: (source, target, topic) -> partitions; every one whose replica may move is among them.
        self._open: dict[tuple[int, int, str], list[int]] = {}

    def step(self) -> tuple[int, int, int] | None:
        """Partition, source, target."""
        board, count = self._board, self._board.count
        rising = sorted(board.active, key=lambda each: (count[each], each))
        for source in reversed(rising):
            if count[source] - count[rising[0]] < 2:
                return None
            # The source's own rack first: such a move never crowds a rack.
            rack = board.rack(source)
            for target in sorted(rising, key=lambda each: board.rack(each) != rack):
                if count[source] - count[target] < 2:
                    continue
                index = self._movable(source, target)
                if index is not None:
                    return index, source, target
        return None

    def _movable(self, source: int, target: int) -> int | None:
        """A partition of the topic that is spread worst between the two; among these, the best for the bytes."""
        topics = self._topics.get((source, target))
        if topics is None:
            topics = [(self._spread(source, target, topic), topic) for topic in self._board.on[source]]
            heapify(topics)
            self._topics[source, target] = topics
        while topics:
            spread, topic = topics[0]
            now = self._spread(source, target, topic)
            if now != spread:
                heapreplace(topics, (now, topic))
                continue
            index = self._best(source, target, topic)
            if index is not None:
                return index
            heappop(topics)
        return None

    def _spread(self, source: int, target: int, topic: str) -> int:
        on = self._board.on
        return len(on[target].get(topic, ())) - len(on[source].get(topic, ()))

    def _best(self, source: int, target: int, topic: str) -> int | None:
        board = self._board
        key = source, target, topic
        if key not in self._open:
            self._open[key] = sorted(board.on[source].get(topic, ()))
        indexes, able, looked = self._open[key], set[int](), 0
        for index in indexes:
            looked += 1
            if source in board.replicas[index] and board.fits(index, source, target):
                able.add(index)
                if len(able) == _CANDIDATES:
                    break
        indexes[:looked] = sorted(able)
        sizes = board.sizes
        return min(able, key=lambda n: (-board.gain(source, target, sizes[n]), sizes[n], n), default=None)

    def follow(self, index: int, source: int, target: int) -> None:
        """Offer what a step made possible, to the pairs that have been searched."""
        board = self._board
        topic = board.partitions[index].topic
        is_same_rack = board.rack(source) == board.rack(target)
        for here in board.replicas[index]:
            for there in (source,) if is_same_rack and here != target else board.active:
                indexes = self._open.get((here, there, topic))
                if (here, there) in self._topics and board.fits(index, here, there):
                    if indexes is not None:
                        indexes.append(index)
                    self._offer(here, there, topic)
        for other in board.active:
            # The topic is spread worse between these than before.
            self._offer(target, other, topic)
            self._offer(other, source, topic)

    def _offer(self, source: int, target: int, topic: str) -> None:
        topics = self._topics.get((source, target))
        if topics is not None and self._open.get((source, target, topic), True):
            heappush(topics, (self._spread(source, target, topic), topic))
