"""The figures of `make bench-spark` and their goals: Ottla's data source over Spark's Kafka connector. [P]"""

from __future__ import annotations

from ottla_bench.rows import Row

#: Rates are in thousands of rows a second, the CPU in microseconds of JVM and Python workers per row.
SPARK_ROWS = (
    Row("read_100", "batch read, 100 B", "k/s", 2.0, more=True, binding=True),
    Row("read_1k", "batch read, 1 KB", "k/s", 1.5, more=True, binding=True),
    Row("stream_100", "AvailableNow stream, 100 B", "k/s", 1.5, more=True, binding=True),
    Row("stream_start", "AvailableNow stream of ten records", "s"),
    Row("write_100", "batch write at least once, 100 B", "k/s", 1.2, more=True, binding=True),
    Row("write_1k", "batch write at least once, 1 KB", "k/s", 1.2, more=True, binding=True),
    Row("exact_100", "batch write exactly once, 100 B (connector: at least once)", "k/s"),
    Row("exact_1k", "batch write exactly once, 1 KB (connector: at least once)", "k/s"),
    Row("trickle_p50", "latency of a trickle through a stream, p50", "ms", 1.0, binding=True),
    Row("trickle_p99", "latency of a trickle through a stream, p99", "ms", 1.0, binding=True),
    Row("many", "batch read of 500 partitions", "s", 1.0, binding=True),
    Row("cpu_read_100", "CPU, batch read, 100 B", "µs/row"),
    Row("cpu_read_1k", "CPU, batch read, 1 KB", "µs/row"),
    Row("cpu_stream_100", "CPU, stream, 100 B", "µs/row"),
    Row("cpu_write_100", "CPU, batch write, 100 B", "µs/row"),
    Row("cpu_write_1k", "CPU, batch write, 1 KB", "µs/row"),
)
