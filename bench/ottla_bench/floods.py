"""`make bench-floods`: a quiet client beside none, one, two and four floods, on three brokers of each side. [A]

python -m ottla_bench.floods [--runs 3] [--only none,four] [--quick] [--json FILE] [--write PAGE]

A flood is one connection to each broker that always has requests under way: Produce, then also ListOffsets, then also
Fetch and Metadata. During each level a quiet client writes up to fifty records a second with acks=all, and a group of
three joins again and again (`quiet_client`); `leadership_changes` counts lost registrations and controllers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from ottla_bench import load_client
from ottla_bench.comparison import Comparison, Say, compare
from ottla_bench.flood_client import FloodJob, Floods
from ottla_bench.flood_requests import FLOODS
from ottla_bench.load_client import Job
from ottla_bench.quiet_client import QuietJob, observe
from ottla_bench.rows import Row
from ottla_bench.trios import BROKERS, Trio, running_trio, until_whole

#: Number of floods by the name of the level.
LEVELS = {"none": 0, "one": 1, "two": 2, "four": 4}

_QUIET, _FLOODED = "bench-quiet", "bench-flooded"
_QUIET_PARTITIONS = 6
#: Members of a group are not waited for, on either side: what is measured is how fast they are served.
_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
#: After the floods began, and between two levels, for queues to fill and to empty.
_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class FloodSizes:
    #: Of the flooded topic, with one replica each: every broker leads a third of them.
    partitions: int = 2700
    seconds: float = 30.0
    #: The quiet client alone, for the JVM's compiler; both sides get it.
    warm_seconds: float = 15.0


QUICK_SIZES = FloodSizes(900, 8.0, 4.0)


def _rows() -> Iterator[Row]:
    for level, floods in LEVELS.items():
        under = "quiet" if not floods else f"{floods} flood{'s' if floods > 1 else ''}"
        yield Row(f"p50_{level}", f"acks=all, {under}, p50", "ms")
        if floods:
            yield Row(f"p99_{level}", f"acks=all, {under}, p99", "ms", 1 / 2, binding=True)
        else:
            yield Row(f"p99_{level}", f"acks=all, {under}, p99", "ms")
        yield Row(f"gap_{level}", f"longest gap, {under}", "s")
        yield Row(f"join_{level}", f"group of three joins, {under}", "s")
        if floods:
            title = f"the same, over its own quiet time, {under}"
            yield Row(f"join_times_{level}", title, "times", ceiling=2.0, binding=True)
        title = f"registrations lost, {under}"
        yield Row(f"expired_{level}", title, "leases", ceiling=1.0, always=True, binding=True)
        yield Row(f"controllers_{level}", f"controller changes, {under}", "changes")


FLOOD_ROWS = tuple(_rows())

FLOOD_NOTES = (
    *(
        Row(f"rate_{flood}_{level}", f"{flood} answers, {level}", "1/s")
        for level, number in LEVELS.items()
        for flood in FLOODS[:number]
    ),
    *(Row(f"failed_{level}", f"failed writes, {level}", "records") for level in LEVELS),
    *(Row(f"joins_{level}", f"groups that joined, {level}", "groups") for level in LEVELS),
    *(Row(f"cut_{level}", f"flood connections lost, {level}", "times") for level in LEVELS),
)


class FloodLife:
    def __init__(self, trio: Trio, sizes: FloodSizes, say: Say) -> None:
        self._trio = trio
        self._sizes = sizes
        self._say = say
        self.sample: dict[str, float] = {}

    def measure(self, wanted: Collection[str]) -> None:
        safe = {"min.insync.replicas": "2"}
        self._create(_QUIET, _QUIET_PARTITIONS, BROKERS, safe)
        self._create(_FLOODED, self._sizes.partitions, 1, {})
        until_whole(self._trio)
        self._say("warming up")
        self._observe("warm", self._sizes.warm_seconds)
        for level in LEVELS:
            if level in wanted:
                self._level(level)
                time.sleep(_SETTLE_S)

    def _create(self, topic: str, partitions: int, replicas: int, config: dict[str, str]) -> None:
        load_client.run(
            Job(
                "create",
                self._trio.bootstrap,
                topic,
                partitions=partitions,
                replicas=replicas,
                config=config,
            )
        )

    def _observe(self, name: str, seconds: float) -> dict[str, float]:
        seen = observe(QuietJob(self._trio.bootstrap, _QUIET, _QUIET_PARTITIONS, seconds, name))
        return {
            f"p50_{name}": seen.p50_ms,
            f"p99_{name}": seen.p99_ms,
            f"gap_{name}": seen.gap_s,
            f"join_{name}": seen.join_s,
            f"joins_{name}": seen.joins,
            f"failed_{name}": seen.failed,
        }

    def _level(self, level: str) -> None:
        names = FLOODS[: LEVELS[level]]
        seconds = self._sizes.seconds
        until_whole(self._trio)  # What an earlier level has broken is not counted again.
        with self._trio.changes() as changes, ExitStack() as stack:
            floods: Floods | None = None
            began = time.monotonic()
            if names:
                job = FloodJob(self._trio.bootstrap, _FLOODED, names, seconds=seconds + 150)
                floods = stack.enter_context(Floods(job))
                time.sleep(_SETTLE_S)
            found = self._observe(level, seconds)
            stack.close()
            took_s = time.monotonic() - began
        found[f"expired_{level}"] = changes.expired
        found[f"controllers_{level}"] = changes.controllers
        if floods is not None:
            found[f"cut_{level}"] = floods.answers.get("cut", 0)
            for name in names:
                found[f"rate_{name}_{level}"] = floods.answers.get(name, 0) / took_s
            if "join_none" in self.sample:
                found[f"join_times_{level}"] = found[f"join_{level}"] / self.sample["join_none"]
        for key, value in found.items():
            self._say(f"{key} {value:.2f}")
        self.sample |= found


def one_flood_life(name: str, wanted: Collection[str], sizes: FloodSizes, say: Say) -> list[dict[str, float]]:
    """Measure every wanted level on three fresh brokers; they are stopped afterwards."""
    with running_trio(name, _SETTINGS) as trio:
        life = FloodLife(trio, sizes, say)
        life.measure(wanted)
        return [life.sample]


def _life(name: str, wanted: Collection[str], quick: bool, say: Say) -> list[dict[str, float]]:
    return one_flood_life(name, wanted, QUICK_SIZES if quick else FloodSizes(), say)


FLOODED = Comparison(
    "floods",
    "a quiet client beside floods, on three brokers of Apache Kafka and three of Ottla",
    tuple(LEVELS),
    FLOOD_ROWS,
    FLOOD_NOTES,
    _life,
)

if __name__ == "__main__":
    sys.exit(compare(FLOODED))
