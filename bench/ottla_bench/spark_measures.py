"""What `make bench-spark` asks of each side, one measure after the other, both sides within the same seconds. [A]

Both read the same topics of one broker: the connector over Kafka's protocol, the data source `ottla` over gRPC. Rows
that are read go to Spark's `noop` sink; rows that are written come from `spark.range`. Each query is one of a warm
JVM: the caller runs all of them once before it counts, and each follows a tiny one of its kind, because Spark ends the
Python processes that were idle for a minute.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla_bench import load_client
from ottla_bench.load_client import Job
from ottla_bench.spark_session import Spark
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONNECTOR, OTTLA = "connector", "Ottla"
MEASURES = (
    "read_100",
    "read_1k",
    "stream_100",
    "stream_start",
    "write_100",
    "write_1k",
    "exact_100",
    "exact_1k",
    "trickle",
    "many",
)
_PARTITIONS = 4
#: Between the client's usual 16 KB and what a busy producer fills.
_BATCH_BYTES = 65_536
_QUERY_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Sizes:
    rows_100: int = 4_000_000
    rows_1k: int = 500_000
    written_100: int = 1_000_000
    written_1k: int = 200_000
    many_rows: int = 100_000
    many_partitions: int = 500
    trickle_s: float = 10.0
    trickle_per_s: int = 50
    #: Micro-batches before that counts: the first ones of a query take several times as long.
    trickle_settle: int = 30


QUICK = Sizes(100_000, 20_000, 50_000, 10_000, 5_000, 20, 2.0, trickle_settle=5)


class Measures:
    def __init__(
        self, spark: Spark, cluster: LocalCluster, sizes: Sizes, folder: Path, prefix: str = ""
    ) -> None:
        """`prefix` is that of its topics."""
        self._spark = spark
        self._cluster = cluster
        self._sizes = sizes
        self._folder = folder
        self._tiny = f"{prefix}tiny"
        self._hundred, self._kilobyte, self._crowd = (f"{prefix}{n}" for n in ("hundred", "kilobyte", "many"))
        self._admin = Admin(cluster.grpc_bootstrap)

    def __enter__(self) -> Measures:
        self._admin.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.__exit__(None, None, None)

    def fill(self, wanted: set[str]) -> None:
        sizes = self._sizes
        self._produce(self._tiny, 100, 10, 1)
        self._produce(self._hundred, 100, sizes.rows_100, _PARTITIONS)
        self._produce(self._kilobyte, 1000, sizes.rows_1k, _PARTITIONS)
        if "many" in wanted:
            self._produce(self._crowd, 100, sizes.many_rows, sizes.many_partitions)

    def _produce(self, topic: str, record_bytes: int, rows: int, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions)])
        load_client.run(
            Job(
                "produce",
                self._cluster.kafka_bootstrap,
                topic,
                partitions=partitions,
                records=rows,
                record_bytes=record_bytes,
                batch_bytes=_BATCH_BYTES,
            )
        )

    def take(self, name: str, side: str) -> dict[str, float]:
        """The figures of one measure, by the keys of the rows."""
        sizes = self._sizes
        if name.startswith(("write", "exact")):
            self._write(
                "tiny", side, 100, 10, "at-least-once" if name.startswith("write") else "exactly-once"
            )
        else:
            self._to_noop(side, self._tiny)
        return {
            "read_100": lambda: self._read("read_100", side, self._hundred, sizes.rows_100),
            "read_1k": lambda: self._read("read_1k", side, self._kilobyte, sizes.rows_1k),
            "stream_100": lambda: self._stream("stream_100", side, self._hundred, sizes.rows_100),
            "stream_start": lambda: self._start_of_stream(side),
            "write_100": lambda: self._write("write_100", side, 100, sizes.written_100, "at-least-once"),
            "write_1k": lambda: self._write("write_1k", side, 1000, sizes.written_1k, "at-least-once"),
            "exact_100": lambda: self._write("exact_100", side, 100, sizes.written_100, "exactly-once"),
            "exact_1k": lambda: self._write("exact_1k", side, 1000, sizes.written_1k, "exactly-once"),
            "trickle": lambda: self._trickle(side),
            "many": lambda: self._many(side),
        }[name]()

    # ------------------------------------------------------------------ queries

    def _format(self, side: str) -> tuple[str, dict[str, str]]:
        if side == CONNECTOR:
            return "kafka", {"kafka.bootstrap.servers": self._cluster.kafka_bootstrap}
        return "ottla", {"bootstrap.servers": self._cluster.grpc_bootstrap}

    def _timed(self, key: str, rows: int, work: Callable[[], None]) -> dict[str, float]:
        before, began = self._spark.cpu(), time.perf_counter()
        work()
        took_s = time.perf_counter() - began
        used_s = self._spark.cpu().since(before)
        return {key: rows / took_s / 1000, f"cpu_{key}": used_s * 1e6 / rows}

    def _rows(self, side: str, topic: str) -> DataFrame:
        name, options = self._format(side)
        return self._spark.session.read.format(name).options(**options, subscribe=topic).load()

    def _to_noop(self, side: str, topic: str) -> None:
        self._rows(side, topic).write.format("noop").mode("overwrite").save()

    def _read(self, key: str, side: str, topic: str, rows: int) -> dict[str, float]:
        return self._timed(key, rows, lambda: self._to_noop(side, topic))

    def _many(self, side: str) -> dict[str, float]:
        began = time.perf_counter()
        self._to_noop(side, self._crowd)
        return {"many": time.perf_counter() - began}

    def _stream(self, key: str, side: str, topic: str, rows: int) -> dict[str, float]:
        name, options = self._format(side)

        def work() -> None:
            reading = self._spark.session.readStream.format(name).options(**options, subscribe=topic)
            writing = reading.option("startingOffsets", "earliest").load().writeStream.format("noop")
            query = (
                writing.trigger(availableNow=True).option("checkpointLocation", self._checkpoint()).start()
            )
            if not query.awaitTermination(_QUERY_TIMEOUT_S):
                raise RuntimeError(f"The stream of {side} did not end within {_QUERY_TIMEOUT_S} s.")

        return self._timed(key, rows, work)

    def _start_of_stream(self, side: str) -> dict[str, float]:
        """The time of a query that has next to nothing to read."""
        topic = f"start-{uuid4().hex[:8]}"
        self._produce(topic, 100, 10, 1)
        began = time.perf_counter()
        self._stream("start", side, topic, 10)
        return {"stream_start": time.perf_counter() - began}

    def _write(self, key: str, side: str, record_bytes: int, rows: int, guarantee: str) -> dict[str, float]:
        name, options = self._format(side)
        if side == OTTLA:
            options["deliveryGuarantee"] = guarantee
        topic = f"written-{uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(topic, _PARTITIONS)])
        text = f"lpad(cast(id as string), {record_bytes}, 'x')"
        made = self._spark.session.range(0, rows, 1, 2).selectExpr(
            "cast(id as string) as key", f"{text} as value"
        )
        writing = made.write.format(name).options(**options, topic=topic).mode("append")
        try:
            return self._timed(key, rows, writing.save)
        finally:
            self._admin.delete_topics([topic])

    def _checkpoint(self) -> str:
        return str(self._folder / f"checkpoint-{uuid4().hex[:8]}")

    # ------------------------------------------------------------------ trickle

    def _trickle(self, side: str) -> dict[str, float]:
        """From a record's send until a micro-batch has handed it over; one micro-batch after the other."""
        topic = f"trickle-{uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(topic, 1)])
        name, options = self._format(side)
        taken: list[float] = []
        batches: list[int] = []

        def arrived(batch: DataFrame, number: int) -> None:
            values = [row.value for row in batch.select("value").collect()]
            now = time.time()
            taken.extend(now - json.loads(value) for value in values)
            batches.append(number)

        rows = self._spark.session.readStream.format(name).options(**options, subscribe=topic)
        writing = rows.option("startingOffsets", "earliest").load().writeStream.foreachBatch(arrived)
        query = writing.option("checkpointLocation", self._checkpoint()).start()
        over = threading.Event()
        sending = threading.Thread(target=self._send_slowly, args=(topic, over), daemon=True)
        sending.start()
        try:
            _until(lambda: len(batches) >= self._sizes.trickle_settle)
            before = len(taken)
            wanted = max(10, int(self._sizes.trickle_s * self._sizes.trickle_per_s))
            time.sleep(self._sizes.trickle_s)
            _until(lambda: len(taken) - before >= wanted // 2)
            found = sorted(taken[before:])
        finally:
            over.set()
            sending.join()
            query.processAllAvailable()  # a micro-batch that is interrupted fills the screen
            query.stop()
        return {
            "trickle_p50": found[len(found) // 2] * 1000,
            "trickle_p99": found[min(len(found) - 1, len(found) * 99 // 100)] * 1000,
        }

    def _send_slowly(self, topic: str, over: threading.Event) -> None:
        with Producer(self._cluster.grpc_bootstrap, linger_ms=0) as producer:
            while not over.wait(1 / self._sizes.trickle_per_s):
                producer.send(topic, json.dumps(time.time()).encode(), partition=0)


def _until(holds: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"A stream handed over too few records within {timeout_s:.0f} s.")
        time.sleep(0.05)
