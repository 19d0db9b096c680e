"""The compared figures: one row each, with its unit, which way is better, and its goal. [P]

A figure of one side is the median of its runs. The ratio is Ottla's median over Kafka's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

Sample = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    unit: str
    #: The ratio to reach; None for figures without a goal.
    bound: float | None = None
    #: More is better: the bound is a floor, not a ceiling.
    more: bool = False
    #: Upper limit of Ottla's figure, whatever the other side's is.
    ceiling: float | None = None
    #: That holds for the worst of the runs, not only for their median.
    always: bool = False
    #: False: an aim. True: the figure counts as missed when it is not reached.
    binding: bool = False

    def reached(self, ratio: float) -> bool | None:
        if self.bound is None:
            return None
        return ratio >= self.bound if self.more else ratio <= self.bound

    @property
    def goal(self) -> str:
        if self.ceiling is not None:
            return f"< {self.ceiling:g} {self.unit}"
        if self.bound is None:
            return ""
        return f"{'≥' if self.more else '≤'} {self.bound:.2f}{'' if self.binding else ' (aim)'}"


class Spread(NamedTuple):
    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


ROWS = (
    Row("produce_1k", "produce, 1 KB records, 1 MB batches", "MB/s", 1.3, more=True),
    Row("cpu_produce_1k", "broker CPU, producing 1 KB", "ms/MB", 0.6, binding=True),
    Row("produce_100", "produce, 100 B records, 16 KB batches", "MB/s", 1.3, more=True),
    Row("cpu_produce_100", "broker CPU, producing 100 B", "ms/MB", 0.6, binding=True),
    Row("consume", "consume, 1 KB records", "MB/s", 1.2, more=True, binding=True),
    Row("cpu_consume", "broker CPU, consuming", "ms/MB"),
    Row("p50", "produce latency, 5,000 sends a second, p50", "ms"),
    Row("p99", "produce latency, 5,000 sends a second, p99", "ms", 1 / 3, binding=True),
    Row("calm_p50", "produce latency, 1,000 sends a second, p50", "ms"),
    Row("calm_p99", "produce latency, 1,000 sends a second, p99", "ms"),
    Row("alone_p50", "produce latency, one in flight, p50", "ms"),
    Row("alone_p99", "produce latency, one in flight, p99", "ms"),
    Row("crowd_p50", "1,000 clients, a record every 100 ms each, p50", "ms"),
    Row("crowd_p99", "1,000 clients, a record every 100 ms each, p99", "ms", 1.0),
    Row("cpu_crowd", "broker CPU, the same", "ms/1,000 requests", 0.6),
    Row("startup", "start-up", "s", 1 / 4, binding=True),
    Row("idle", "memory, idle", "MB", 1 / 6, binding=True),
    Row("loaded", "memory, loaded", "MB", 1 / 10, binding=True),
)

#: With three brokers a side. CPU and memory are sums over the three; etcd has its own rows.
TRIO_ROWS = (
    Row("rf3", "produce, acks=all, 6 partitions, 1 KB records", "MB/s", 1.5, more=True, binding=True),
    Row("cpu_rf3", "brokers' CPU, the same", "ms/MB", 0.6, binding=True),
    Row("rf3_small", "produce, acks=all, 6 partitions, 16 KB batches", "MB/s", 10.0, more=True),
    Row("cpu_rf3_small", "brokers' CPU, the same", "ms/MB", 0.6),
    Row("create", "creating 1,000 partitions", "s", 0.5),
    Row(
        "thousand", "produce, acks=all, 1,000 partitions, 16 KB batches", "MB/s", 5.0, more=True, binding=True
    ),
    Row("cpu_thousand", "brokers' CPU, the same", "ms/MB"),
    Row("p50", "latency of single acks=all writes, p50", "ms"),
    Row("p99", "latency of single acks=all writes, p99", "ms", 1 / 3, binding=True),
    Row("kill_leader", "leader killed, longest gap, client's defaults", "s", ceiling=1.0, binding=True),
    Row("kill_leader_quick", "leader killed, longest gap, quick client", "s", ceiling=1.0, binding=True),
    Row("kill_controller", "leader and controller killed, client's defaults", "s", ceiling=1.0, binding=True),
    Row(
        "kill_controller_quick", "leader and controller killed, quick client", "s", ceiling=1.0, binding=True
    ),
    Row("pause_leader_quick", "leader paused, longest gap, quick client", "s", ceiling=8.0, binding=True),
    Row("lost", "acknowledged and lost, all failovers", "records", ceiling=1.0, always=True, binding=True),
    Row("failed", "refused for good, all failovers", "records"),
    Row("startup", "start-up of all three", "s"),
    Row("idle", "memory, idle", "MB"),
    Row("loaded", "memory, loaded", "MB"),
)

TRIO_NOTES = (
    Row("etcd_rf3", "etcd CPU, 6 partitions", "ms/MB"),
    Row("etcd_rf3_small", "etcd CPU, 16 KB batches", "ms/MB"),
    Row("etcd_thousand", "etcd CPU, 1,000 partitions", "ms/MB"),
    Row("etcd_idle", "etcd memory, idle", "MB"),
    Row("etcd_loaded", "etcd memory, loaded", "MB"),
    Row("client_rf3", "client, 6 partitions", "cores"),
    Row("client_rf3_small", "client, 16 KB batches", "cores"),
    Row("client_thousand", "client, 1,000 partitions", "cores"),
)

#: Notes beside the table, for one side only or for the client.
NOTES = (
    Row("etcd_produce", "etcd CPU while producing", "ms/MB"),
    Row("etcd_idle", "etcd memory, idle", "MB"),
    Row("etcd_loaded", "etcd memory, loaded", "MB"),
    Row("client_produce_1k", "client, producing 1 KB", "cores"),
    Row("client_produce_100", "client, producing 100 B", "cores"),
    Row("client_consume", "client, consuming", "cores"),
)


class Figure(NamedTuple):
    row: Row
    kafka: Spread | None
    ottla: Spread | None

    @property
    def ratio(self) -> float | None:
        if self.kafka is None or self.ottla is None or not self.kafka.median:
            return None
        return self.ottla.median / self.kafka.median

    @property
    def reached(self) -> bool | None:
        ceiling = self.row.ceiling
        if ceiling is not None:
            if self.ottla is None:
                return None
            return (self.ottla.most if self.row.always else self.ottla.median) < ceiling
        return None if self.ratio is None else self.row.reached(self.ratio)


def figures(rows: Sequence[Row], kafka: Sequence[Sample], ottla: Sequence[Sample]) -> list[Figure]:
    """One figure per measured row."""
    made = []
    for row in rows:
        sides = [[sample[row.key] for sample in side if row.key in sample] for side in (kafka, ottla)]
        if any(sides):
            first, second = (spread(values) if values else None for values in sides)
            made.append(Figure(row, first, second))
    return made


def number(value: float) -> str:
    """Three significant digits, without exponents."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
