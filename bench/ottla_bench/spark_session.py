"""One Spark JVM with Spark's own Kafka connector beside the data source `ottla`, and what it costs. [A]"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil
from pyspark.sql import SparkSession

from ottla_bench.kafka_jars import cache_folder, fetch

CONNECTOR_VERSION = "4.2.0"
#: Connectors later than that are not on Maven Central, nor the token provider of that version.
_COORDINATES = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
_SAMPLE_S = 0.2


def connector_jars() -> list[Path]:
    """Alone: what else they need is Spark's."""
    folder = cache_folder().with_name(f"spark-kafka-{CONNECTOR_VERSION}")
    if not folder.is_dir():
        fetch(folder, _COORDINATES, alone=True)
    return sorted(folder.glob("*.jar"))


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds so far."""

    own: dict[int, float]
    #: Of children of the JVM that have ended, such as the driver of a Python stream.
    of_ended: float

    def since(self, before: CpuUse) -> float:
        used = sum(now - before.own.get(pid, 0.0) for pid, now in self.own.items())
        ended = sum(then for pid, then in before.own.items() if pid not in self.own)
        return used + max(0.0, self.of_ended - before.of_ended - ended)


class Spark:
    """The session, and the processes that do its work: the JVM and its Python workers."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        gateway = session.sparkContext._gateway
        assert gateway is not None
        self._jvm = psutil.Process(gateway.proc.pid)
        #: The Python driver of the session is this process.
        self._driver = psutil.Process()

    def cpu(self) -> CpuUse:
        own: dict[int, float] = {}
        for process in self._all():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            own[process.pid] = times.user + times.system
        of_ended = self._jvm.cpu_times()
        return CpuUse(own, of_ended.children_user + of_ended.children_system)

    def memory_mb(self) -> tuple[float, float, float]:
        """Resident: the JVM, the Python driver, and the largest Python process that the JVM has started."""
        jvm, worker = 0.0, 0.0
        for process in self._all():
            try:
                held = process.memory_info().rss / 1e6
            except psutil.NoSuchProcess:
                continue
            if process == self._jvm:
                jvm = held
            else:
                worker = max(worker, held)
        return jvm, self._driver.memory_info().rss / 1e6, worker

    def _all(self) -> list[psutil.Process]:
        return [self._jvm, *self._jvm.children(recursive=True)]


class PeakMemory:
    """The most that JVM, Python driver and worker held while the block ran."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.jvm_mb, self.driver_mb, self.worker_mb = 0.0, 0.0, 0.0

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            jvm, driver, worker = self._spark.memory_mb()
            self.jvm_mb = max(self.jvm_mb, jvm)
            self.driver_mb = max(self.driver_mb, driver)
            self.worker_mb = max(self.worker_mb, worker)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def spark_with_both(folder: Path, *, with_connector: bool = True) -> Iterator[Spark]:
    # Workers run this Python; Spark would take the first python3 of PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("ottla-bench")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(folder))
    )
    if with_connector:
        builder = builder.config("spark.jars", ",".join(map(str, connector_jars())))
    session = builder.getOrCreate()
    # The connector logs an error for each batch read without a group id of its own.
    session.sparkContext.setLogLevel("OFF")
    try:
        yield Spark(session)
    finally:
        session.stop()
