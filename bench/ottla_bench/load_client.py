"""The load: stock librdkafka in a process of its own, one job per process, JSON in, JSON out. [A]

Started by `run`, which any benchmark calls. Both brokers get exactly the same client with the same settings,
and no benchmark shares an interpreter with its load.

How each job measures:

* `produce`: from the first `produce()` to the end of `flush()`; every record acknowledged or the job fails.
  The queue is deep (256 MB), so the client is never idle for want of an acknowledgement.
* `consume`: from the first record to the last, by `consume(10_000)`, so that connecting is not in the rate.
* `latency`: one record in flight. From `produce()` to its delivery callback, linger 0. The client waits in
  `poll()`, which returns with the callback: spinning instead would take one of two cores from librdkafka's
  own threads and from the broker, and measure the scheduler.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

#: Room for what is not acknowledged yet; librdkafka takes at most this from us before BufferError.
_QUEUE_KB = 256 * 1024
_QUEUE_RECORDS = 500_000
#: Longer than any broker that works needs; a hung one must not hang the benchmark.
_JOB_TIMEOUT_S = 600.0
_STALL_S = 60.0
_LATENCY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    kind: str
    bootstrap: str
    topic: str
    #: `create` makes this many; the others use the first of them, `produce` round and round.
    partitions: int = 1
    record_bytes: int = 1000
    records: int = 0
    #: librdkafka's batch.size.
    batch_bytes: int = 1_000_000
    #: Exactly so many records to a partition at a time, and to a batch; 0: as many as fit.
    batch_records: int = 0
    #: `create` only.
    replicas: int = 1
    acks: str = "1"
    #: `create` only: this many topics, named `<topic>-000` and so on.
    topics: int = 1
    #: `create` only: settings of the topic.
    config: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)


class LoadFailed(RuntimeError):
    """The client could not do its job; the message holds what it said."""


def run(job: Job) -> dict[str, float]:
    """Do the job in a fresh process; gives what it measured."""
    command = [sys.executable, "-P", "-m", "ottla_bench.load_client", json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_JOB_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise LoadFailed(f"The client failed at {job.kind} {job.topic}:\n{done.stderr.strip()[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


# ---------------------------------------------------------------------- in the client's process


def _settings(job: Job, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": job.bootstrap,
        "client.id": "ottla-bench",
        # A benchmark restarts brokers; librdkafka would fill the screen with what we know.
        "log_level": 0,
        "error_cb": lambda error: None,
        "socket.nagle.disable": True,
        **more,
        **job.extra,
    }


def _create(job: Job) -> dict[str, float]:
    from confluent_kafka.admin import AdminClient, NewTopic

    names = [job.topic] if job.topics == 1 else [f"{job.topic}-{i:03}" for i in range(job.topics)]
    began = time.perf_counter()
    admin = AdminClient(_settings(job))
    wanted = [
        NewTopic(name, num_partitions=job.partitions, replication_factor=job.replicas, config=job.config)
        for name in names
    ]
    for future in admin.create_topics(wanted, operation_timeout=120, request_timeout=150).values():
        future.result(180)
    return {"seconds": time.perf_counter() - began}


def _delete(job: Job) -> dict[str, float]:
    from confluent_kafka.admin import AdminClient

    began = time.perf_counter()
    admin = AdminClient(_settings(job))
    for future in admin.delete_topics([job.topic], operation_timeout=60).values():
        future.result(90)
    return {"seconds": time.perf_counter() - began}


class _Deliveries:
    """Counts acknowledgements; keeps the first refusal."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Any = None

    def __call__(self, error: Any, _message: Any) -> None:
        self.count += 1
        if error is not None and self.error is None:
            self.error = error


def _produce(job: Job) -> dict[str, float]:
    from confluent_kafka import Producer

    producer = Producer(
        _settings(
            job,
            acks=job.acks,
            **{
                # A batch of a fixed number of records is sent because it is full, not because time is up.
                "linger.ms": 1000 if job.batch_records else 5,
                "batch.size": job.batch_bytes,
                "batch.num.messages": job.batch_records or 100_000,
                "queue.buffering.max.messages": _QUEUE_RECORDS,
                "queue.buffering.max.kbytes": _QUEUE_KB,
                # Only failures are told one by one: a Python callback per record would measure the callback.
                "delivery.report.only.error": True,
                "on_delivery": (failures := _Deliveries()),
            },
        )
    )
    _connect(producer, job)
    value, send, topic, partitions = bytes(job.record_bytes), producer.produce, job.topic, job.partitions
    in_a_row = job.batch_records or 1
    began, cpu_began = time.perf_counter(), time.process_time()
    for number in range(job.records):
        while True:
            try:
                send(topic, value, None, number // in_a_row % partitions)
                break
            except BufferError:
                producer.poll(0.01)
    left = _drain(producer)
    seconds = time.perf_counter() - began
    if left or failures.error is not None:
        raise LoadFailed(f"{left} records were not acknowledged; {failures.error}")
    return _rate(job, job.records, seconds, time.process_time() - cpu_began)


def _drain(producer: Any) -> int:
    """Wait until all is acknowledged, or nothing was for `_STALL_S`; gives how many are left."""
    left = len(producer)
    while left and (now := producer.flush(_STALL_S)) < left:
        left = now
    return left


def _connect(producer: Any, job: Job) -> None:
    """Have the connection and the topic's metadata before the clock runs."""
    metadata = producer.list_topics(job.topic, timeout=30)
    found = metadata.topics[job.topic]
    if found.error is not None or len(found.partitions) < job.partitions:
        raise LoadFailed(f"{job.topic}: {found.error}, {len(found.partitions)} partitions")


def _rate(job: Job, records: int, seconds: float, cpu_s: float) -> dict[str, float]:
    megabytes = records * job.record_bytes / 1e6
    return {
        "seconds": seconds,
        "megabytes": megabytes,
        "mb_per_s": megabytes / seconds,
        "client_cpu_ms_per_mb": cpu_s * 1000 / megabytes,
        "client_cores": cpu_s / seconds,
    }


def _consume(job: Job) -> dict[str, float]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        _settings(
            job,
            **{
                "group.id": "ottla-bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "queued.min.messages": 1_000_000,
                # By default librdkafka rests for a second whenever its queue of 64 MB is full. The faster broker
                # fills it, and is then measured by the client's sleep.
                "fetch.queue.backoff.ms": 1,
            },
        )
    )
    consumer.assign([TopicPartition(job.topic, n, OFFSET_BEGINNING) for n in range(job.partitions)])
    got, began, cpu_began = 0, 0.0, 0.0
    deadline = time.monotonic() + _STALL_S
    while got < job.records:
        messages = consumer.consume(10_000 if got else 1, 1.0)
        now = time.monotonic()
        if not messages and now > deadline:
            raise LoadFailed(f"{job.topic}: nothing came for {_STALL_S:.0f} s, after {got} records")
        if messages:
            deadline = now + _STALL_S
            if messages[-1].error() is not None:
                raise LoadFailed(f"{job.topic}: {messages[-1].error()}")
            if not got:
                began, cpu_began = time.perf_counter(), time.process_time()
            got += len(messages)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    consumer.close()
    return _rate(job, got - 1, seconds, cpu_s)


def _latency(job: Job) -> dict[str, float]:
    from confluent_kafka import Producer

    settings = {"linger.ms": 0, "max.in.flight.requests.per.connection": 1}
    producer = Producer(_settings(job, acks=job.acks, **settings))
    _connect(producer, job)
    value, delivered = bytes(job.record_bytes), _Deliveries()
    taken_ms: list[float] = []
    for number in range(1, job.records + 1):
        began = time.perf_counter()
        producer.produce(job.topic, value, None, 0, delivered)
        while delivered.count < number:
            producer.poll(_LATENCY_TIMEOUT_S)
            if time.perf_counter() - began > _LATENCY_TIMEOUT_S:
                raise LoadFailed(f"{job.topic}: no acknowledgement in {_LATENCY_TIMEOUT_S:.0f} s")
        taken_ms.append((time.perf_counter() - began) * 1000)
    if delivered.error is not None:
        raise LoadFailed(f"{job.topic}: {delivered.error}")
    # The first send of a client asks for more than an append: an address, a connection.
    taken_ms = sorted(taken_ms[1:])
    return {
        name: _quantile(taken_ms, q) for name, q in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))
    }


def _quantile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


_JOBS: dict[str, Callable[[Job], dict[str, float]]] = {
    "create": _create,
    "delete": _delete,
    "produce": _produce,
    "consume": _consume,
    "latency": _latency,
}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    json.dump(_JOBS[job.kind](job), sys.stdout)


if __name__ == "__main__":
    main()
