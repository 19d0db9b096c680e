"""`make bench-timers`: the slots of `coordination.timers` beside a heap and a timing wheel, a million deadlines. [S]

    python -m ottla_bench.timers [--timers 1000000] [--runs 3]

Three uses of a deadline: a session, which every heartbeat moves and which is almost never reached; a waiting request,
which is set once and cancelled when its answer comes; and one that is reached. Time per operation, and memory.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Hashable
from typing import Protocol

from rich.console import Console
from rich.table import Table

from ottla_bench.heap_timers import Timers as HeapTimers
from ottla_bench.timing_wheel import TimingWheel
from ottla_broker.coordination.timers import Timers

_SESSION_MS = 45_000
_WAIT_MS = 30_000
_SEED = 1


class Deadlines(Protocol):
    def set(self, key: Hashable, deadline_ms: int) -> None: ...

    def cancel(self, key: Hashable) -> None: ...

    def due(self, now_ms: int) -> list[Hashable]: ...


def _sessions(made: Deadlines, keys: list[Hashable]) -> int:
    """Every member sends a heartbeat per 3 s, for 9 s; timers are checked every 100 ms."""
    for at, key in enumerate(keys):
        made.set(key, _SESSION_MS + at % 3000)
    operations, step = len(keys), max(1, len(keys) // 30)
    for tick in range(1, 91):
        now_ms = tick * 100
        first = (tick % 30) * step
        for key in keys[first : first + step]:
            made.set(key, now_ms + _SESSION_MS)
        operations += step
        if made.due(now_ms):
            raise AssertionError("no session ends here")
    return operations


def _waits(made: Deadlines, keys: list[Hashable]) -> int:
    """Set, then cancelled in another order; a look at the clock each thousand."""
    order = random.Random(_SEED).sample(keys, len(keys))
    for at, key in enumerate(keys):
        made.set(key, _WAIT_MS + at // 1000)
    for at, key in enumerate(order):
        made.cancel(key)
        if at % 1000 == 0:
            made.due(at // 1000)
    return 2 * len(keys)


def _reached(made: Deadlines, keys: list[Hashable]) -> int:
    chance = random.Random(_SEED)
    for key in keys:
        made.set(key, chance.randrange(1, 60_000))
    found = sum(len(made.due(now_ms)) for now_ms in range(0, 60_100, 100))
    if found != len(keys):
        raise AssertionError(f"{found} of {len(keys)} deadlines were reached")
    return 2 * len(keys)


_USES: dict[str, Callable[[Deadlines, list[Hashable]], int]] = {
    "sessions, moved by heartbeats": _sessions,
    "waits, set and cancelled": _waits,
    "deadlines that are reached": _reached,
}
_RIVALS: dict[str, Callable[[], Deadlines]] = {
    "slots": Timers,
    "heap": HeapTimers,
    "timing wheel": TimingWheel,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    keys: list[Hashable] = [("session", f"group-{n % 1000}", n) for n in range(options.timers)]
    table = Table("µs per operation", *_RIVALS)
    for use, run in _USES.items():
        medians = [_median_us(run, make, keys, options.runs) for make in _RIVALS.values()]
        table.add_row(use, *(f"{each:.2f}" for each in medians))
    memory = [_memory_bytes(make, keys) for make in _RIVALS.values()]
    table.add_row("memory, bytes per deadline", *(f"{each:.0f}" for each in memory))
    Console().print(table)
    return 0


def _median_us(
    run: Callable[[Deadlines, list[Hashable]], int],
    make: Callable[[], Deadlines],
    keys: list[Hashable],
    runs: int,
) -> float:
    found = []
    for _ in range(runs):
        made = make()
        gc.collect()
        began = time.process_time()
        operations = run(made, keys)
        found.append((time.process_time() - began) / operations * 1e6)
    return statistics.median(found)


def _memory_bytes(make: Callable[[], Deadlines], keys: list[Hashable]) -> float:
    tracemalloc.start()
    made = make()
    for at, key in enumerate(keys):
        made.set(key, _SESSION_MS + at % 3000)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / len(keys)


if __name__ == "__main__":
    sys.exit(main())
