"""What must hold, racks and leaders: steps of the planner (`rebalance.py`), one function per goal. [P]

Each function improves its goal as far as single steps can, keeps the goals before it, and returns whether it changed
the board. `rebalance_replicas.py` and `rebalance_sizes.py` have the goals between racks and leaders.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import pairwise

from ottla_client.rebalance_board import Board, CannotPlace

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
    here = board.per_rack(index)
    if source is not None:
        here[board.rack(source)] -= 1
    board.evaluated += len(able)
    return min(able, key=lambda b: (here[board.rack(b)], board.count[b], board.size[b], b))


def _least_needed(board: Board, index: int, leaving: set[int]) -> int:
    """The replica to drop. The preferred leader stays if the rest is equal."""
    replicas, here = board.replicas[index], board.per_rack(index)
    return min(
        replicas,
        key=lambda b: (
            b not in leaving,
            -here[board.rack(b)],
            b == replicas[0],
            -board.count[b],
            -b,
        ),
    )


# ------------------------------------------------------------------ racks


def spread_racks(board: Board) -> bool:
    changed = False
    for index, placed in enumerate(board.partitions):
        if placed.pinned or not board.is_crowded(index):
            continue
        while (step := _rack_step(board, index)) is not None:
            board.replace(index, *step)
            changed = True
    return changed


def _rack_step(board: Board, index: int) -> tuple[int, int] | None:
    """From the fullest rack to the emptiest, the busiest broker there to the idlest here."""
    replicas, here = board.replicas[index], board.per_rack(index)
    able = [each for each in board.active if each not in replicas]
    board.evaluated += len(able)
    fullest = max(here.values())
    emptiest = min((here[board.rack(each)] for each in able), default=fullest)
    if fullest - emptiest < 2:
        return None
    target = min((board.count[each], each) for each in able if here[board.rack(each)] == emptiest)[1]
    source = min((-board.count[each], each) for each in replicas if here[board.rack(each)] == fullest)[1]
    return source, target


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
    rising = sorted(board.active, key=lambda each: (led[each], each))
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
            for other in rising:
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
