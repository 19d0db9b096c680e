"""`make bench-transactions`: transactions of 100 and of 10,000 records, on three brokers of each side. [A]

python -m ottla_bench.transactions [--runs 5] [--only small,large] [--quick] [--json FILE] [--write PAGE]

One stock librdkafka producer writes records of 100 bytes to six partitions with three replicas, and commits one
transaction after the other for some seconds. Measured are the rates, the time of a commit (flush, EndTxn, and what the
broker does before it answers), and the CPU time of the brokers for a thousand records.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import confluent_kafka

from ottla_bench import load_client
from ottla_bench.comparison import Comparison, Say, compare
from ottla_bench.load_client import Job
from ottla_bench.process_stats import cpu_ms
from ottla_bench.rows import Row
from ottla_bench.trios import BROKERS, Trio, running_trio, until_whole

#: Records in a transaction, by the name of the measure.
RECORDS = {"small": 100, "large": 10_000}

_TOPIC = "bench-transactions"
_PARTITIONS = 6
_VALUE = b"x" * 100
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class TransactionSizes:
    seconds: float = 15.0
    #: For connections, and for the JVM's compiler; both sides get it.
    warm_seconds: float = 8.0


QUICK_SIZES = TransactionSizes(4.0, 2.0)


def _rows() -> Iterator[Row]:
    for name, count in RECORDS.items():
        what = f"{count:,} records per transaction"
        yield Row(f"rate_{name}", what, "records/s", 1.0, more=True, binding=True)
        yield Row(f"txns_{name}", f"{what}, transactions", "1/s")
        yield Row(f"p50_{name}", f"{what}, commit p50", "ms")
        yield Row(f"p99_{name}", f"{what}, commit p99", "ms")
        yield Row(f"cpu_{name}", f"{what}, brokers' CPU for 1,000 records", "ms", 0.5, binding=True)


class TransactionLife:
    def __init__(self, trio: Trio, sizes: TransactionSizes, say: Say) -> None:
        self._trio = trio
        self._sizes = sizes
        self._say = say
        self.sample: dict[str, float] = {}

    def measure(self, wanted: Collection[str]) -> None:
        safe = {"min.insync.replicas": "2"}
        load_client.run(
            Job(
                "create",
                self._trio.bootstrap,
                _TOPIC,
                partitions=_PARTITIONS,
                replicas=BROKERS,
                config=safe,
            )
        )
        until_whole(self._trio)
        for name, count in RECORDS.items():
            if name not in wanted:
                continue
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": self._trio.bootstrap,
                    "transactional.id": f"bench-{name}",
                    "linger.ms": 1,
                    "log_level": 3,
                }
            )
            producer.init_transactions(_TIMEOUT_S)
            self._transactions(producer, count, self._sizes.warm_seconds)
            before_ms, began = self._cpu_ms(), time.monotonic()
            commits_ms = sorted(self._transactions(producer, count, self._sizes.seconds))
            took_s, used_ms = time.monotonic() - began, self._cpu_ms() - before_ms
            records = len(commits_ms) * count
            found = {
                f"rate_{name}": records / took_s,
                f"txns_{name}": len(commits_ms) / took_s,
                f"p50_{name}": commits_ms[len(commits_ms) // 2],
                f"p99_{name}": commits_ms[len(commits_ms) * 99 // 100],
                f"cpu_{name}": used_ms / records * 1000,
            }
            for key, value in found.items():
                self._say(f"{key} {value:.2f}")
            self.sample |= found

    def _cpu_ms(self) -> float:
        etcd = [] if self._trio.etcd_pid is None else [self._trio.etcd_pid]
        return sum(cpu_ms(pid) for pid in (*self._trio.pids.values(), *etcd))

    def _transactions(self, producer: confluent_kafka.Producer, count: int, seconds: float) -> list[float]:
        """One after the other; the time of each commit in ms."""
        found: list[float] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            producer.begin_transaction()
            for number in range(count):
                producer.produce(_TOPIC, _VALUE, partition=number % _PARTITIONS)
            producer.poll(0)
            began = time.monotonic()
            producer.commit_transaction(_TIMEOUT_S)
            found.append((time.monotonic() - began) * 1000)
        return found


def _life(name: str, wanted: Collection[str], quick: bool, say: Say) -> list[dict[str, float]]:
    with running_trio(name) as trio:
        life = TransactionLife(trio, QUICK_SIZES if quick else TransactionSizes(), say)
        life.measure(wanted)
        return [life.sample]


TRANSACTIONS = Comparison(
    "transactions",
    "transactions of 100 and of 10,000 records: three brokers of Apache Kafka and three of Ottla",
    tuple(RECORDS),
    tuple(_rows()),
    (),
    _life,
)

if __name__ == "__main__":
    sys.exit(compare(TRANSACTIONS))
