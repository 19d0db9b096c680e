"""The planner's goal of even bytes (`rebalance.py`): each broker is within a tolerance of the average. [P]

A step moves a replica, or lets two change places, from a broker with more bytes to one with fewer, such that the bytes
outside the bounds fall by a least amount (`Board.is_worth`). That limits the number of steps. Each broker's replicas
are kept in order of size. A pair of brokers without a step is tried again when one of the two has changed; after the
last step the planner searches all of them once more.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from ottla_client.rebalance_board import Board

#: Replicas that one step tries to give away.
_GIVEN = 24
#: Replicas that are tried in exchange, if the best may not move.
_TAKEN = 4


def even_sizes(board: Board) -> bool:
    """Whether it changed the board."""
    board.set_bounds()
    search = _Search(board)
    changed = False
    while not board.is_spent() and (step := search.step()) is not None:
        source, target, given, taken = step
        search.move(given, source, target)
        if taken is not None:
            search.move(taken, target, source)
        changed = True
    return changed


class _Search:
    def __init__(self, board: Board) -> None:
        self._board = board
        #: Broker -> (size, partition) in order.
        self._on = {
            broker: sorted((board.sizes[n], n) for indexes in board.on[broker].values() for n in indexes)
            for broker in board.active
        }
        self._version: Counter[int] = Counter()
        #: (source, target) without a step -> their versions then.
        self._fruitless: dict[tuple[int, int], tuple[int, int]] = {}

    def move(self, index: int, source: int, target: int) -> None:
        entry = self._board.sizes[index], index
        self._board.replace(index, source, target)
        del self._on[source][bisect_left(self._on[source], entry)]
        insort(self._on[target], entry)
        self._version[source] += 1
        self._version[target] += 1

    def step(self) -> tuple[int, int, int, int | None] | None:
        """Source, target, the partition to give, the one to take."""
        board, size = self._board, self._board.size
        rising = sorted(board.active, key=lambda each: (size[each], each))
        uneven = {each for each in rising if board.uneven(size[each])}
        if not uneven:
            return None
        for source in reversed(rising):
            for target in rising:
                if size[source] <= size[target]:
                    break
                if source not in uneven and target not in uneven:
                    continue
                versions = self._version[source], self._version[target]
                if self._fruitless.get((source, target)) == versions:
                    continue
                found = self._best(source, target)
                if found is not None:
                    return source, target, *found
                self._fruitless[source, target] = versions
        return None

    def _best(self, source: int, target: int) -> tuple[int, int | None] | None:
        """The step between the two that gains most; of these, the one that copies least.

        The gain is largest if half of the difference is moved, and falls on both sides, so replicas are tried from
        there outwards.
        """
        board, size_of = self._board, self._board.sizes
        half = (board.size[source] - board.size[target]) // 2
        if not board.is_worth(board.gain(source, target, half), 0):
            return None
        best: tuple[int, int, int] = (0, 0, 0)
        found: tuple[int, int | None] | None = None
        may_give = board.count[source] > board.count[target]
        for given in _nearest(self._on[source], half, _GIVEN):
            if not board.fits(given, source, target):
                continue
            size = size_of[given]
            if may_give:
                gain = board.gain(source, target, size)
                if board.is_worth(gain, size) and (-gain, size, given) < best:
                    best, found = (-gain, size, given), (given, None)
            for taken in _nearest(self._on[target], size - half, _TAKEN):
                copied = size + size_of[taken]
                gain = board.gain(source, target, size - size_of[taken])
                if (-gain, copied, given) >= best or not board.is_worth(gain, 0):
                    break
                if board.is_worth(gain, copied) and board.fits(taken, target, source):
                    best, found = (-gain, copied, given), (given, taken)
                    break
        return found


def _nearest(rising: list[tuple[int, int]], wanted: int, limit: int) -> Iterator[int]:
    """The partitions whose sizes are nearest, nearest first."""
    right = bisect_left(rising, (wanted, -1))
    left = right - 1
    for _ in range(min(limit, len(rising))):
        if left < 0 or (right < len(rising) and rising[right][0] - wanted < wanted - rising[left][0]):
            yield rising[right][1]
            right += 1
        else:
            yield rising[left][1]
            left -= 1
