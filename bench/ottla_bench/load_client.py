"""The load: stock librdkafka in a process of its own, one job per process. [A]

Started by `run`, which any benchmark calls. Both brokers get exactly the same client with the same settings.
Records go through a small C program (`driver.c`, where each measure is defined): Python's binding takes three times the
CPU for a record that librdkafka itself does, and two brokers that both wait for it look alike. Topics are made and
removed from Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from ottla_bench.driver import DriverUnavailable, driver

#: Room for what is not acknowledged yet: the client is never idle for want of an acknowledgement.
_QUEUE_KB = 256 * 1024
_QUEUE_RECORDS = 500_000
#: Longer than any broker that works needs; a hung one must not hang the benchmark.
_JOB_TIMEOUT_S = 600.0


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
    #: Exact number of records to a partition at a time, and to a batch; 0: as many as fit.
    batch_records: int = 0
    #: `latency` only: how many a second, each due at its time; 0: one in flight.
    per_second: int = 0
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
    """Run the job in a fresh process; return its measurements."""
    command = _admin_command(job) if job.kind in ("create", "delete") else _driver_command(job)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_JOB_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise LoadFailed(f"The client failed at {job.kind} {job.topic}:\n{done.stderr.strip()[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result if "cpu_s" not in result else _rate(job, result["seconds"], result["cpu_s"])


def _rate(job: Job, seconds: float, cpu_s: float) -> dict[str, float]:
    megabytes = job.records * job.record_bytes / 1e6
    return {
        "seconds": seconds,
        "megabytes": megabytes,
        "mb_per_s": megabytes / seconds,
        "client_cpu_ms_per_mb": cpu_s * 1000 / megabytes,
        "client_cores": cpu_s / seconds,
    }


# ---------------------------------------------------------------------- records


def _driver_command(job: Job) -> list[str]:
    numbers = (job.partitions, job.records, job.record_bytes, job.batch_records or 1, job.per_second)
    settings = {**_settings(job), **_OF_KIND[job.kind](job), **job.extra}
    try:
        program = driver()
    except DriverUnavailable as error:
        raise LoadFailed(str(error)) from None
    return [
        program,
        job.kind,
        job.topic,
        *map(str, numbers),
        *(f"{name}={value}" for name, value in settings.items()),
    ]


def _produce(job: Job) -> dict[str, Any]:
    return {
        "acks": job.acks,
        # A batch of a fixed number of records is sent because it is full, not because time is up.
        "linger.ms": 1000 if job.batch_records else 5,
        "batch.size": job.batch_bytes,
        "batch.num.messages": job.batch_records or 100_000,
        "queue.buffering.max.messages": _QUEUE_RECORDS,
        "queue.buffering.max.kbytes": _QUEUE_KB,
        "delivery.report.only.error": "true",
    }


def _consume(job: Job) -> dict[str, Any]:
    return {
        "group.id": "ottla-bench",
        "enable.auto.commit": "false",
        "auto.offset.reset": "error",
        "queued.min.messages": 1_000_000,
        # By default librdkafka rests for a second whenever its queue of 64 MB is full. The faster broker
        # fills it, and is then measured by the client's sleep.
        "fetch.queue.backoff.ms": 1,
    }


def _latency(job: Job) -> dict[str, Any]:
    return {"acks": job.acks, "linger.ms": 0}


_OF_KIND = {"produce": _produce, "consume": _consume, "latency": _latency}


def _settings(job: Job) -> dict[str, Any]:
    return {
        "bootstrap.servers": job.bootstrap,
        "client.id": "ottla-bench",
        # A benchmark restarts brokers; librdkafka would fill the screen with expected errors.
        "log_level": 0,
        "socket.nagle.disable": "true",
    }


# ---------------------------------------------------------------------- topics


def _admin_command(job: Job) -> list[str]:
    return [sys.executable, "-P", "-m", "ottla_bench.load_client", json.dumps(asdict(job))]


def _create(job: Job) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    names = [job.topic] if job.topics == 1 else [f"{job.topic}-{i:03}" for i in range(job.topics)]
    admin = AdminClient({**_settings(job), "error_cb": lambda error: None})
    wanted = [
        NewTopic(name, num_partitions=job.partitions, replication_factor=job.replicas, config=job.config)
        for name in names
    ]
    for future in admin.create_topics(wanted, operation_timeout=120, request_timeout=150).values():
        future.result(180)


def _delete(job: Job) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({**_settings(job), "error_cb": lambda error: None})
    for future in admin.delete_topics([job.topic], operation_timeout=60).values():
        future.result(90)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    began = time.perf_counter()
    (_create if job.kind == "create" else _delete)(job)
    json.dump({"seconds": time.perf_counter() - began}, sys.stdout)


if __name__ == "__main__":
    main()
