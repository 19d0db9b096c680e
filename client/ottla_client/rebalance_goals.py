"""The steps of the planner (`rebalance.py`), one function per goal. [P]

Each function improves its goal as far as single steps can, keeps the goals before it, and returns whether it changed
the board.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import pairwise

from ottla_client.rebalance_board import Board, CannotPlace

#: Candidates that one step compares; more of the same topic differ little, and 10,000 would make a plan slow.
_CANDIDATES = 64
#: Sizes beside the best one that are tried for an exchange, if the best may not move.
_NEIGHBOURS = 4


# ------------------------------------------------------------------ what must hold


def repair(board: Board, replication: Mapping[str, int]) -> None:
    """Empty the leaving brokers and reach the replication factors. Large partitions first, as they fit worst."""
    leaving = {each.id for each in board.brokers.values() if each.leaving}
    order = sorted(range(len(board.partitions)), key=lambda index: -board.partitions[index].size)
    for index in order:
        placed = board.partitions[index]
        wanted = replication.get(placed.topic, len(placed.replicas))
        if wanted < 1:
            raise CannotPlace(f"{placed.name} needs at least 1 replica; {wanted} were asked for.")
        if wanted == len(placed.replicas) and leaving.isdisjoint(placed.replicas):
            continue
        if placed.pinned:
            raise CannotPlace(f"{placed.name} has a declared placement that names a broker which leaves.")
        while len(board.replicas[index]) > wanted:
            board.drop(index, _least_needed(board, index, leaving))
        for source in [each for each in board.replicas[index] if each in leaving]:
            board.replace(index, source, _best_target(board, index, source, wanted))
        while len(board.replicas[index]) < wanted:
            board.add(index, _best_target(board, index, None, wanted))


def _best_target(board: Board, index: int, source: int | None, wanted: int) -> int:
    able = [each for each in board.active if each not in board.replicas[index]]
    if not able:
        raise CannotPlace(
            f"{board.partitions[index].name} needs {wanted} brokers for its replicas, but only "
            f"{len(board.active)} may receive any. Add brokers, or lower its replication factor."
        )
    return min(able, key=lambda b: (board.crowding_after(index, source, b), board.count[b], board.size[b], b))


def _least_needed(board: Board, index: int, leaving: set[int]) -> int:
    """The replica to drop. The preferred leader stays if the rest is equal."""
    replicas = board.replicas[index]
    return min(
        replicas,
        key=lambda b: (
            b not in leaving,
            board.crowding_after(index, b, None),
            b == replicas[0],
            -board.count[b],
            -b,
        ),
    )


# ------------------------------------------------------------------ racks


def spread_racks(board: Board) -> bool:
    changed = False
    for index, placed in enumerate(board.partitions):
        while not placed.pinned and board.is_crowded(index):
            replicas = board.replicas[index]
            steps = [
                (board.crowding_after(index, source, target), board.count[target], -board.count[source], source, target)
                for source in replicas
                for target in board.active
                if target not in replicas
            ]  # fmt: skip
            if not steps or min(steps)[0] >= board.crowding(replicas):
                break
            *_, source, target = min(steps)
            board.replace(index, source, target)
            changed = True
    return changed


# ------------------------------------------------------------------ replicas


def even_replicas(board: Board) -> bool:
    board.set_bounds()
    changed = False
    #: (source, target) without a replica that may move, so that they are not searched again for each step.
    stuck: set[tuple[int, int]] = set()
    while (step := _replica_step(board, stuck)) is not None:
        index, source, _ = step
        board.replace(*step)
        # The step gave the others new choices where this partition has replicas, and made room at its source.
        stuck = {pair for pair in stuck if pair[0] not in board.replicas[index] and pair[1] != source}
        changed = True
    return changed


def _replica_step(board: Board, stuck: set[tuple[int, int]]) -> tuple[int, int, int] | None:
    rising = sorted(board.active, key=lambda each: (board.count[each], each))
    for source in reversed(rising):
        # The source's own rack first: such a move never crowds a rack.
        for target in sorted(rising, key=lambda each: board.rack(each) != board.rack(source)):
            if board.count[source] - board.count[target] < 2 or (source, target) in stuck:
                continue
            index = _movable(board, source, target)
            if index is not None:
                return index, source, target
            stuck.add((source, target))
    return None


def _movable(board: Board, source: int, target: int) -> int | None:
    """A partition of the topic that is spread worst between the two; among these, the best for the bytes."""
    there = board.on[target]
    topics = sorted(
        board.on[source].items(), key=lambda each: (len(there.get(each[0], ())) - len(each[1]), each[0])
    )
    for _, indexes in topics:
        able = []
        for index in sorted(indexes):
            if board.fits(index, source, target):
                size = board.partitions[index].size
                able.append((-board.gain(source, target, size), size, index))
                if len(able) == _CANDIDATES:
                    break
        if able:
            return min(able)[-1]
    return None


# ------------------------------------------------------------------ bytes


def even_sizes(board: Board) -> bool:
    board.set_bounds()
    changed = False
    while (step := _size_step(board)) is not None:
        source, target, given, taken = step
        board.replace(given, source, target)
        if taken is not None:
            board.replace(taken, target, source)
        changed = True
    return changed


def _size_step(board: Board) -> tuple[int, int, int, int | None] | None:
    rising = sorted(board.active, key=lambda each: (board.size[each], each))
    for source in reversed(rising):
        for target in rising:
            if board.size[source] <= board.size[target]:
                break
            if board.uneven(board.size[source]) or board.uneven(board.size[target]):
                steps = list(_transfers(board, source, target))
                if steps:
                    *_, given, taken = min(steps, key=lambda each: each[:3])
                    return source, target, given, taken
    return None


def _transfers(board: Board, source: int, target: int) -> Iterator[tuple[int, int, int, int, int | None]]:
    """Steps that make the two brokers less uneven: (-gain, bytes copied, partition, the same, exchanged for)."""
    size_of = board.sizes
    half = (board.size[source] - board.size[target]) // 2
    giving = sorted(_on(board, source), key=lambda index: (abs(size_of[index] - half), index))[:_CANDIDATES]
    taking = sorted(_on(board, target), key=lambda index: (size_of[index], index))
    sizes = [size_of[index] for index in taking]
    for given in giving:
        if not board.fits(given, source, target):
            continue
        if board.count[source] > board.count[target]:
            gain = board.gain(source, target, size_of[given])
            if board.is_worth(gain, size_of[given]):
                yield -gain, size_of[given], given, given, None
        middle = bisect_left(sizes, size_of[given] - half)
        for taken in taking[max(0, middle - _NEIGHBOURS) : middle + _NEIGHBOURS]:
            copied = size_of[given] + size_of[taken]
            gain = board.gain(source, target, size_of[given] - size_of[taken])
            if board.is_worth(gain, copied) and board.fits(taken, target, source):
                yield -gain, copied, given, given, taken


def _on(board: Board, broker: int) -> Iterator[int]:
    for indexes in board.on[broker].values():
        yield from indexes


# ------------------------------------------------------------------ leaders


def even_leaders(board: Board) -> bool:
    """Hand leaderships on along the shortest chain of brokers that ends at one with at least two fewer.

    Without such a chain the leaders are spread as evenly as the placement permits.
    """
    active = set(board.active)
    led = dict.fromkeys(board.active, 0)
    #: (leader, other replica) -> partitions
    shared: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for index, replicas in enumerate(board.replicas):
        if replicas and replicas[0] in active:
            led[replicas[0]] += 1
            if not board.partitions[index].pinned:
                for other in replicas[1:]:
                    shared[replicas[0], other].add(index)
    changed = False
    while (chain := _chain(board, led, shared)) is not None:
        for leader, successor in pairwise(chain):
            _hand_on(board, shared, min(shared[leader, successor]), successor)
        led[chain[0]] -= 1
        led[chain[-1]] += 1
        changed = True
    return changed


def _chain(
    board: Board, led: Mapping[int, int], shared: Mapping[tuple[int, int], set[int]]
) -> list[int] | None:
    for start in sorted(board.active, key=lambda each: (-led[each], each)):
        came_from = {start: start}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            if led[start] - led[here] >= 2:
                chain = [here]
                while chain[-1] != start:
                    chain.append(came_from[chain[-1]])
                return chain[::-1]
            for other in sorted(board.active, key=lambda each: (led[each], each)):
                if other not in came_from and shared.get((here, other)):
                    came_from[other] = here
                    queue.append(other)
    return None


def _hand_on(
    board: Board, shared: defaultdict[tuple[int, int], set[int]], index: int, successor: int
) -> None:
    """The leader and the successor change places in the list of replicas."""
    replicas = board.replicas[index]
    for other in replicas[1:]:
        shared[replicas[0], other].discard(index)
    position = replicas.index(successor)
    replicas[0], replicas[position] = replicas[position], replicas[0]
    for other in replicas[1:]:
        shared[replicas[0], other].add(index)
