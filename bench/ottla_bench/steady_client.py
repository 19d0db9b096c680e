"""A steady writer in a process of its own: one acks=all record each 5 ms, while brokers come and go. [A]

Started and led by `failover`, over its standard streams:

    prints `writing` once something is acknowledged       → the parent breaks a broker and sends `disturbed`
    prints `calm` when all is as before, and stops        → the parent repairs the broker and sends `read`
    reads everything back and prints the result as JSON

Calm is when nothing had to wait for half a second during the last two. The longest gap is the longest time between
two acknowledgements of which the second came after the disturbance.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import IO, Any

_EVERY_S = 0.005
_TROUBLE_S = 0.5
_CALM_S = 2.0
#: A cluster that has not come back by then does not.
_PATIENCE_S = 120.0

#: A client with short timeouts. librdkafka's defaults pause for 100 ms and more between attempts, and wait for a
#: broker that holds a connection and says nothing for a whole minute.
QUICK: Mapping[str, Any] = {
    "socket.timeout.ms": 1500,
    "socket.connection.setup.timeout.ms": 1500,
    "linger.ms": 0,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
}


@dataclass(frozen=True, slots=True)
class SteadyJob:
    bootstrap: str
    topic: str
    partition: int
    #: Begins every record of this writer.
    name: str
    #: On top of librdkafka's defaults, of which acks=all is one.
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    longest_gap_s: float
    acknowledged: int
    failed: int
    lost: int


class SteadyClient:
    """The process, as its parent sees it."""

    def __init__(self, job: SteadyJob) -> None:
        command = [sys.executable, "-P", "-m", "ottla_bench.steady_client", json.dumps(asdict(job))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def hear(self, word: str) -> None:
        self._expect(_line(self._process.stdout), word)

    def say(self, word: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()

    def result(self) -> Seen:
        return Seen(**json.loads(_line(self._process.stdout)))

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def _expect(self, line: str, word: str) -> None:
        if line != word:
            self._process.kill()
            _, errors = self._process.communicate()
            raise RuntimeError(f"The steady client said {line!r}, not {word!r}: {errors.strip()[-2000:]}")


def _line(stream: IO[str] | None) -> str:
    """The other end sees to it that this does not wait for ever: every wait of its own is bounded."""
    return "" if stream is None else stream.readline().strip()


# ---------------------------------------------------------------------- in the client's process


class _Writer:
    def __init__(self, job: SteadyJob) -> None:
        from confluent_kafka import Producer

        self._job = job
        self._producer = Producer(
            {"bootstrap.servers": job.bootstrap, "log_level": 0, "error_cb": _ignore, **job.settings}
        )
        self.acknowledged: set[bytes] = set()
        self.failed = 0
        self._times: list[float] = []
        #: When each record that is not acknowledged was sent, oldest first.
        self._waiting: dict[bytes, float] = {}
        self._disturbed_at: float | None = None
        self._troubled_at = 0.0

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        began = next_at = time.monotonic()
        number, told = 0, False
        while not self._is_over(time.monotonic(), began):
            self._send(b"%s-%d" % (self._job.name.encode(), number))
            number += 1
            next_at += _EVERY_S
            while (left_s := next_at - time.monotonic()) > 0:
                self._producer.poll(left_s)
            if self._times and not told:
                told = True
                print("writing", flush=True)
        self._producer.flush(_PATIENCE_S)

    def _listen(self) -> None:
        sys.stdin.readline()
        self._disturbed_at = time.monotonic()

    def _is_over(self, now: float, began: float) -> bool:
        oldest = next(iter(self._waiting.values()), now)
        if now - oldest > _TROUBLE_S:
            self._troubled_at = now
        if self._disturbed_at is None:
            return now - began > _PATIENCE_S
        if now - self._disturbed_at > _PATIENCE_S:
            return True
        return now - max(self._disturbed_at, self._troubled_at) > _CALM_S

    def _send(self, value: bytes) -> None:
        def note(error: Any, _message: Any) -> None:
            self._waiting.pop(value, None)
            if error is not None:
                self.failed += 1
            else:
                self.acknowledged.add(value)
                self._times.append(time.monotonic())

        self._waiting[value] = time.monotonic()
        self._producer.produce(self._job.topic, value, partition=self._job.partition, on_delivery=note)

    def longest_gap_s(self) -> float:
        since = self._disturbed_at or 0.0
        return max((b - a for a, b in pairwise(self._times) if b >= since), default=_PATIENCE_S)


def _ignore(_error: Any) -> None:
    """Ignore librdkafka's errors about lost brokers: this benchmark causes them."""


def _read_back(job: SteadyJob) -> set[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "ottla-bench",
            "enable.auto.commit": False,
            "log_level": 0,
            "error_cb": _ignore,
        }
    )
    place = TopicPartition(job.topic, job.partition, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=30)
    consumer.assign([place])
    found: set[bytes] = set()
    position, deadline = 0, time.monotonic() + _PATIENCE_S
    while position < end and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                found.add(message.value() or b"")
                position = (message.offset() or 0) + 1
    consumer.close()
    return found


def main() -> None:
    job = SteadyJob(**json.loads(sys.argv[1]))
    writer = _Writer(job)
    writer.run()
    print("calm", flush=True)
    # Without an answer the parent has exited, and its end of the stream is closed.
    sys.stdin.readline()
    lost = len(writer.acknowledged - _read_back(job))
    seen = Seen(writer.longest_gap_s(), len(writer.acknowledged), writer.failed, lost)
    print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    main()
