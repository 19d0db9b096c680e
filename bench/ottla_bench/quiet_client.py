"""A quiet client in a process of its own: a few acks=all writes, and a group of three that joins again and again. [A]

Stock librdkafka with its defaults, except that it does not linger. One write is under way at a time, the next one is
due 20 ms after the last. A write that takes longer stands for those that it held up as well: they count with what they
would have waited. The longest gap is the longest time between two acknowledgements. A group has joined when all three
members have partitions and together have all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from statistics import median
from typing import Any

_EVERY_S = 0.02
_MEMBERS = 3
#: Pause between two joins, so that the last group is empty.
_REST_S = 0.3
#: A write that is not acknowledged by then has failed; a client that does not end by then is ended.
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class QuietJob:
    bootstrap: str
    topic: str
    partitions: int
    seconds: float
    #: Begins the names of its groups.
    name: str
    joins: bool = True


@dataclass(frozen=True, slots=True)
class Observed:
    acknowledged: int
    failed: int
    p50_ms: float
    p99_ms: float
    gap_s: float
    #: Median, and how many joined. A group that did not join counts with the time it had.
    join_s: float
    joins: int


def observe(job: QuietJob) -> Observed:
    """Run the client to its end."""
    command = [sys.executable, "-P", "-m", "ottla_bench.quiet_client", json.dumps(asdict(job))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=job.seconds + 3 * _PATIENCE_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"The quiet client failed: {done.stderr.strip()[-2000:]}")
    return Observed(**json.loads(done.stdout))


# ---------------------------------------------------------------------- in the client's process


class _Writer:
    def __init__(self, job: QuietJob) -> None:
        from confluent_kafka import Producer

        self._job = job
        self._producer = Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "linger.ms": 0,
                "message.timeout.ms": int(_PATIENCE_S * 1000),
                "log_level": 0,
                "error_cb": _ignore,
            }
        )
        self.latencies_s: list[float] = []
        self.times: list[float] = []
        self.failed = 0

    def run(self, until: float) -> None:
        due = time.monotonic()
        for number in count():
            if due > until:
                return
            while (left_s := due - time.monotonic()) > 0:
                self._producer.poll(left_s)
            began = time.monotonic()
            partition = number % self._job.partitions
            self._producer.produce(
                self._job.topic, b"%d" % number, partition=partition, on_delivery=self._noting(began)
            )
            self._producer.flush(_PATIENCE_S + 1)
            due = max(due + _EVERY_S, time.monotonic())

    def _noting(self, began: float) -> Callable[[Any, Any], None]:
        def note(error: Any, _message: Any) -> None:
            now = time.monotonic()
            if error is not None:
                self.failed += 1
                return
            self.times.append(now)
            took_s = now - began
            while took_s > 0:
                self.latencies_s.append(took_s)
                took_s -= _EVERY_S

        return note


def _ignore(_error: Any) -> None:
    """librdkafka reports every connection that it loses; the figures show what that cost."""


def _join(job: QuietJob, group: str, deadline: float) -> float | None:
    """Seconds until a new group of three has all partitions; None if it has not by then."""
    from confluent_kafka import Consumer

    # Short heartbeats: else a member learns of the next one only after three seconds, on any broker.
    settings = {
        "bootstrap.servers": job.bootstrap,
        "group.id": group,
        "heartbeat.interval.ms": 100,
        "log_level": 0,
        "error_cb": _ignore,
    }
    consumers = [Consumer(settings) for _ in range(_MEMBERS)]
    began = time.monotonic()
    try:
        for consumer in consumers:
            consumer.subscribe([job.topic])
        while time.monotonic() < deadline:
            for consumer in consumers:
                consumer.poll(0.01)
            owned = [{p.partition for p in consumer.assignment()} for consumer in consumers]
            if all(owned) and sum(map(len, owned)) == len(set().union(*owned)) == job.partitions:
                return time.monotonic() - began
        return None
    finally:
        closing = [threading.Thread(target=consumer.close, daemon=True) for consumer in consumers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(_PATIENCE_S)


def _keep_joining(job: QuietJob, until: float, took_s: list[float], joined: list[str]) -> None:
    for number in count():
        began = time.monotonic()
        # The last attempt is not begun when it could hardly end.
        if began > until - (1.0 if took_s else 0.0):
            return
        group = f"{job.name}-{number}"
        found = _join(job, group, until)
        if found is not None:
            joined.append(group)
            took_s.append(found)
        elif not took_s or time.monotonic() - began > median(took_s):
            took_s.append(time.monotonic() - began)
        time.sleep(_REST_S)


def _part(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    job = QuietJob(**json.loads(sys.argv[1]))
    began = time.monotonic()
    until = began + job.seconds
    writer = _Writer(job)
    took_s: list[float] = []
    joined: list[str] = []
    joining = threading.Thread(target=_keep_joining, args=(job, until, took_s, joined), daemon=True)
    if job.joins:
        joining.start()
    writer.run(until)
    if job.joins:
        joining.join(3 * _PATIENCE_S)
    times = [began, *writer.times]
    seen = Observed(
        acknowledged=len(writer.times),
        failed=writer.failed,
        p50_ms=1000 * _part(writer.latencies_s or [job.seconds], 0.5),
        p99_ms=1000 * _part(writer.latencies_s or [job.seconds], 0.99),
        gap_s=max((b - a for a, b in pairwise(times)), default=job.seconds),
        join_s=median(took_s) if took_s else job.seconds,
        joins=len(joined),
    )
    print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    main()
