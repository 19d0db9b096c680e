"""Measures three brokers: start, idle, warm up, load, loss of brokers, and their cost. [A]

Called once per side and turn. The order is fixed: memory is measured before the first and after the last load, and
brokers are lost last, because a JVM that was started again would have to be warmed up again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ottla_bench import load_client
from ottla_bench.contenders import ETCD, OTTLA
from ottla_bench.failover import CASES, Failovers
from ottla_bench.load_client import Job
from ottla_bench.page_cache import touch_pages
from ottla_bench.process_stats import CpuWatch, memory_mb
from ottla_bench.trios import BROKERS, Trio, running_trio, until_whole

TRIO_MEASURES = ("startup", "idle", "rf3", "rf3_small", "thousand", "latency", "loaded", "failover")

_SIX, _SMALL, _THOUSAND, _LATENCY = "bench-six", "bench-small", "bench-thousand", "bench-latency"


@dataclass(frozen=True, slots=True)
class TrioSizes:
    """How much of everything. The warm-up is for the JVM's compiler; both sides get it."""

    records: int = 300_000
    warm_records: int = 100_000
    partitions: int = 1000
    #: Of 16 records each, to the thousand partitions in turn.
    batches: int = 3000
    warm_batches: int = 1000
    sends: int = 2000
    warm_sends: int = 500
    #: How often each way of losing a broker is tried per run of Ottla. Kafka's take half a minute: one each.
    failovers: int = 2
    settle_s: float = 3.0


TRIO_QUICK = TrioSizes(30_000, 10_000, 100, 300, 100, 300, 100, 1, 1.0)

_BATCH_RECORDS = 16


class TrioLife:
    def __init__(
        self, name: str, trio: Trio, wanted: Collection[str], sizes: TrioSizes, say: Callable[[str], None]
    ) -> None:
        self._trio = trio
        self._wanted = wanted
        self._sizes = sizes
        self._say = say
        self._failovers = sizes.failovers if name == OTTLA else min(1, sizes.failovers)
        #: Most figures are in the first; each further one holds what was tried once more.
        self.samples: list[dict[str, float]] = [{}]

    def measure(self) -> None:
        sizes, wanted = self._sizes, self._wanted
        self._note("startup", self._trio.started_in_s, "s")
        until_whole(self._trio)
        if "idle" in wanted:
            time.sleep(sizes.settle_s)
            self._memory("idle")
        if "rf3" in wanted:
            self._produce("rf3", _SIX, 6, sizes.records, sizes.warm_records)
        if "rf3_small" in wanted:
            few = (sizes.records // 3, sizes.warm_records // 2)
            self._produce("rf3_small", _SMALL, 6, *few, batch_records=_BATCH_RECORDS)
        if "thousand" in wanted:
            many = (sizes.batches * _BATCH_RECORDS, sizes.warm_batches * _BATCH_RECORDS)
            created_s = self._produce(
                "thousand", _THOUSAND, sizes.partitions, *many, batch_records=_BATCH_RECORDS
            )
            self._note("create", created_s, "s")
        if "latency" in wanted:
            self._latency()
        if "loaded" in wanted:
            self._memory("loaded")
        if "failover" in wanted:
            self._lose_brokers()

    def _job(self, kind: str, topic: str, **more: int) -> dict[str, float]:
        return load_client.run(
            Job(kind, self._trio.bootstrap, topic, replicas=BROKERS, acks="all", **more)  # type: ignore[arg-type]
        )

    def _note(self, key: str, value: float, unit: str) -> None:
        self.samples[0][key] = value
        self._say(f"{key} {value:.2f} {unit}")

    def _processes(self) -> dict[str, int]:
        etcd = self._trio.etcd_pid
        brokers = {f"broker {number}": pid for number, pid in self._trio.pids.items()}
        return brokers if etcd is None else {**brokers, ETCD: etcd}

    def _memory(self, key: str) -> None:
        used = {name: memory_mb(pid) for name, pid in self._processes().items()}
        if ETCD in used:
            self._note(f"{ETCD}_{key}", used.pop(ETCD), "MB")
        self._note(key, sum(used.values()), "MB")

    def _produce(
        self, key: str, topic: str, partitions: int, records: int, warm: int, batch_records: int = 0
    ) -> float:
        """The warm-up is of the same kind and to the same topic: each load has its own paths to compile. Returns the
        seconds that creating the topic took."""
        created_s = self._job("create", topic, partitions=partitions)["seconds"]
        until_whole(self._trio)
        self._say(f"warming up for {key}")
        self._job("produce", topic, partitions=partitions, records=warm, batch_records=batch_records)
        touch_pages(records * 1000 * BROKERS * 5 // 4)
        watch = CpuWatch(self._processes())
        result = self._job(
            "produce", topic, partitions=partitions, records=records, batch_records=batch_records
        )
        used = watch.used_ms()
        megabytes = result["megabytes"]
        if ETCD in used:
            self._note(f"{ETCD}_{key}", used.pop(ETCD) / megabytes, "ms/MB")
        self._note(key, result["mb_per_s"], "MB/s")
        self._note(f"cpu_{key}", sum(used.values()) / megabytes, "ms/MB")
        self._note(f"client_{key}", result["client_cores"], "cores")
        self._job("delete", topic)
        return created_s

    def _latency(self) -> None:
        self._job("create", _LATENCY)
        until_whole(self._trio)
        self._job("latency", _LATENCY, records=self._sizes.warm_sends)
        result = self._job("latency", _LATENCY, records=self._sizes.sends)
        self._note("p50", result["p50_ms"], "ms")
        self._note("p99", result["p99_ms"], "ms")

    def _lose_brokers(self) -> None:
        failovers = Failovers(self._trio, self._say)
        for again in range(self._failovers):
            if again:
                self.samples.append({})
            for case in CASES:
                self.samples[-1].update(failovers.try_out(case))
        self._note("lost", failovers.lost, "records")
        self._note("failed", failovers.failed, "records")


def one_trio_life(
    name: str, wanted: Collection[str], sizes: TrioSizes, say: Callable[[str], None]
) -> list[dict[str, float]]:
    """Take all wanted measures of three fresh brokers; they are stopped afterwards."""
    with running_trio(name) as trio:
        life = TrioLife(name, trio, wanted, sizes, say)
        life.measure()
        return life.samples
