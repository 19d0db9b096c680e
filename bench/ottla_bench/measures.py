"""Measures one broker: start, idle, warm up, load, and their cost. [A]

Called by `side_by_side` once per side and run. The order is fixed, because memory is measured before the
first and after the last load; what was not asked for is left out where nothing else needs it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from statistics import median

from ottla_bench import crowd, load_client
from ottla_bench.contenders import BROKER, ETCD, Running, running
from ottla_bench.load_client import Job
from ottla_bench.page_cache import touch_pages
from ottla_bench.process_stats import CpuWatch, memory_mb

MEASURES = ("startup", "idle", "produce_1k", "consume", "produce_100", "latency", "crowd", "loaded")

_KILOBYTE, _HUNDRED, _LATENCY, _WARM = "bench-kilobyte", "bench-hundred", "bench-latency", "bench-warm"
_CROWD = "bench-crowd"
#: Of the crowd: a record of each client per period, to this many partitions.
_PERIOD_MS, _CROWD_PARTITIONS = 100, 6
_SMALL_BATCH_BYTES = 16_384
#: Sends of one record each, a second, by the name of the rows: far below what either broker can, and near what Kafka
#: can on one connection of two cores.
_PACES = {"calm_": 1_000, "": 5_000}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything. The warm-up is for the JVM's compiler; both sides get it."""

    records_1k: int = 1_000_000
    records_100: int = 2_000_000
    sends: int = 5_000
    #: Clients that write a record every 100 ms each, and for how long.
    clients: int = 1_000
    crowd_s: float = 5.0
    #: Of sends at each of `_PACES`.
    paced_s: float = 4.0
    #: Latency measurements per run, of which the median is reported: one stall of the machine is a whole p99.
    latency_rounds: int = 3
    warm_records_1k: int = 300_000
    warm_records_100: int = 500_000
    warm_sends: int = 2_000
    settle_s: float = 5.0


QUICK = Sizes(100_000, 200_000, 500, 200, 1.0, 0.5, 1, 20_000, 20_000, 100, 1.0)


class Life:
    def __init__(
        self, server: Running, wanted: Collection[str], sizes: Sizes, say: Callable[[str], None]
    ) -> None:
        self._server = server
        self._wanted = wanted
        self._sizes = sizes
        self._say = say
        self.sample: dict[str, float] = {}

    def measure(self) -> None:
        self._note("startup", self._server.started_in_s, "s")
        if "idle" in self._wanted:
            time.sleep(self._sizes.settle_s)
            self._memory("idle")
        loads = {"produce_1k", "consume", "produce_100", "latency", "crowd", "loaded"} & set(self._wanted)
        if not loads:
            return
        self._warm_up()
        everything = "loaded" in loads
        if everything or loads & {"produce_1k", "consume"}:
            self._produce("produce_1k", _KILOBYTE, 1000, self._sizes.records_1k, 1_000_000)
        if everything or "consume" in loads:
            self._consume()
        if everything or "produce_100" in loads:
            self._produce("produce_100", _HUNDRED, 100, self._sizes.records_100, _SMALL_BATCH_BYTES)
        if everything or "latency" in loads:
            self._latency()
        if everything or "crowd" in loads:
            self._crowd()
        if everything:
            self._memory("loaded")

    def _job(self, kind: str, topic: str, **more: int) -> dict[str, float]:
        return load_client.run(Job(kind, self._server.bootstrap, topic, **more))  # type: ignore[arg-type]

    def _note(self, key: str, value: float, unit: str) -> None:
        self.sample[key] = value
        self._say(f"{key} {value:.2f} {unit}")

    def _memory(self, key: str) -> None:
        for role, pid in self._server.processes.items():
            self._note(key if role == BROKER else f"{role}_{key}", memory_mb(pid), "MB")

    def _warm_up(self) -> None:
        sizes = self._sizes
        self._say("warming up")
        self._job("create", _WARM)
        self._job("produce", _WARM, records=sizes.warm_records_1k)
        self._job("consume", _WARM, records=sizes.warm_records_1k)
        small = f"{_WARM}-small"
        self._job("create", small)
        self._job(
            "produce", small, records=sizes.warm_records_100, record_bytes=100, batch_bytes=_SMALL_BATCH_BYTES
        )
        self._job("create", f"{_WARM}-latency")
        self._sends(sizes.warm_sends, sizes.paced_s / 4, f"{_WARM}-latency")

    def _produce(self, key: str, topic: str, record_bytes: int, records: int, batch_bytes: int) -> None:
        self._job("create", topic)
        touch_pages(records * record_bytes * 5 // 4)
        watch = CpuWatch(self._server.processes)
        result = self._job(
            "produce", topic, record_bytes=record_bytes, records=records, batch_bytes=batch_bytes
        )
        used = watch.used_ms()
        self._note(key, result["mb_per_s"], "MB/s")
        self._note(f"cpu_{key}", used[BROKER] / result["megabytes"], "ms/MB")
        self._note(f"client_{key}", result["client_cores"], "cores")
        if ETCD in used and key == "produce_1k":
            self._note("etcd_produce", used[ETCD] / result["megabytes"], "ms/MB")

    def _consume(self) -> None:
        watch = CpuWatch(self._server.processes)
        result = self._job("consume", _KILOBYTE, records=self._sizes.records_1k)
        used = watch.used_ms()[BROKER]
        self._note("consume", result["mb_per_s"], "MB/s")
        self._note("cpu_consume", used / result["megabytes"], "ms/MB")
        self._note("client_consume", result["client_cores"], "cores")

    def _latency(self) -> None:
        sizes = self._sizes
        self._job("create", _LATENCY)
        # What the loads before wrote goes to the disk now, and not in between sends that are timed.
        os.sync()
        rounds = [self._sends(sizes.sends, sizes.paced_s, _LATENCY) for _ in range(sizes.latency_rounds)]
        for name in rounds[0]:
            for percentile in ("p50", "p99"):
                middle = median(one[name][f"{percentile}_ms"] for one in rounds)
                self._note(f"{name}{percentile}", middle, "ms")

    def _crowd(self) -> None:
        sizes = self._sizes
        self._job("create", _CROWD, partitions=_CROWD_PARTITIONS)
        given = (self._server.bootstrap, _CROWD, _CROWD_PARTITIONS, sizes.clients, _PERIOD_MS)
        crowd.run(*given, sizes.crowd_s / 4)
        watch = CpuWatch(self._server.processes)
        result = crowd.run(*given, sizes.crowd_s)
        self._note("crowd_p50", result["p50_ms"], "ms")
        self._note("crowd_p99", result["p99_ms"], "ms")
        self._note("cpu_crowd", watch.used_ms()[BROKER] / result["requests"] * 1000, "ms per 1,000 requests")

    def _sends(self, alone: int, paced_s: float, topic: str) -> dict[str, dict[str, float]]:
        """Single records with one in flight, then at each pace; results by the name of their rows."""
        results = {"alone_": self._job("latency", topic, records=alone)}
        for name, per_second in _PACES.items():
            records = max(10, round(per_second * paced_s))
            results[name] = self._job("latency", topic, records=records, per_second=per_second)
        return results


def one_life(
    name: str, wanted: Collection[str], sizes: Sizes, say: Callable[[str], None]
) -> dict[str, float]:
    """Take all wanted measures of one fresh broker; it is stopped afterwards."""
    with running(name) as server:
        life = Life(server, wanted, sizes, say)
        life.measure()
        return life.sample
