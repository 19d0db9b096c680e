"""A client that writes one record each few milliseconds with acks=all, and knows what was acknowledged."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition


class SteadyWriter:
    """Runs in a thread of its own, until closed."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition: int | None = None,
        every_s: float = 0.005,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": 60_000,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "log_level": 0,
            **(more or {}),
        }
        self._producer = Producer(settings)
        self._topic, self._partition, self._every_s = topic, partition, every_s
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self.times: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SteadyWriter:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self.times:
            assert time.monotonic() < deadline, "nothing was acknowledged"
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._every_s):
            value = b"%d" % number
            number += 1
            where = {} if self._partition is None else {"partition": self._partition}
            self._producer.produce(self._topic, value, on_delivery=self._noting(value), **where)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def _noting(self, value: bytes) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged.append(value)
                self.times.append(time.monotonic())

        return note

    def longest_gap_s(self, since: float) -> float:
        """Between two acknowledgements, the first of them not before `since`."""
        times = [since, *(t for t in self.times if t >= since)]
        return max((b - a for a, b in itertools.pairwise(times)), default=float("inf"))


def read_all(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    """Everything that a reader sees, in order within each partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    )
    found: list[bytes] = []
    try:
        for partition in range(partitions):
            place = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=20)
            consumer.assign([place])
            position, deadline = 0, time.monotonic() + 30
            while position < end:
                assert time.monotonic() < deadline, f"partition {partition} ends at {position}, not {end}"
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    found.append(message.value() or b"")
                    position = (message.offset() or 0) + 1
    finally:
        consumer.close()
    return found
