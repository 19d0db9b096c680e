"""Writes numbered records with librdkafka and its default settings, and remembers which were acknowledged. [A]

Runs in a pod; standard library and confluent-kafka only. With --count so many, as fast as it goes; with --every-ms
one after another until standard input is closed. The last line it prints is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from select import select
from typing import Any

from confluent_kafka import Producer


class Writer:
    def __init__(self, bootstrap: str, topic: str, log: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._topic = topic
        self._log = open(log, "a")  # noqa: SIM115  (closed in `finish`)
        self._last_ack = time.monotonic()
        self.acked = 0
        self.longest_gap_s = 0.0
        self.slowest_s = 0.0
        self.failures: list[str] = []

    def write(self, number: int) -> None:
        text, began = str(number), time.monotonic()

        def answered(error: Any, _: Any) -> None:
            if error is not None:
                self.failures.append(str(error))
                return
            now = time.monotonic()
            if self.acked:
                self.longest_gap_s = max(self.longest_gap_s, now - self._last_ack)
            self._last_ack = now
            self.slowest_s = max(self.slowest_s, now - began)
            self.acked += 1
            self._log.write(f"{text}\n")

        while True:
            try:
                self._producer.produce(self._topic, text.encode(), text.encode(), on_delivery=answered)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def pause(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def finish(self) -> dict[str, Any]:
        unanswered = self._producer.flush(60)
        self._log.close()
        return {
            "acked": self.acked,
            "failed": len(self.failures),
            "failures": sorted(set(self.failures))[:5],
            "unanswered": unanswered,
            "longest_gap_ms": round(self.longest_gap_s * 1000),
            "slowest_ms": round(self.slowest_s * 1000),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--log", required=True, help="file for the numbers of acknowledged records")
    parser.add_argument("--first", type=int, default=0, help="number of the first record")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--count", type=int)
    how.add_argument("--every-ms", type=float)
    asked = parser.parse_args()

    writer = Writer(asked.bootstrap, asked.topic, asked.log)
    if asked.count is not None:
        for number in range(asked.first, asked.first + asked.count):
            writer.write(number)
    else:
        number = asked.first
        # Standard input says nothing: it can be read from when it is closed.
        while not select([sys.stdin], [], [], 0)[0]:
            next_at = time.monotonic() + asked.every_ms / 1000
            writer.write(number)
            number += 1
            # Serving callbacks while waiting, so that an acknowledgement has the time of its arrival.
            while (left := next_at - time.monotonic()) > 0:
                writer.pause(left)
    print(json.dumps(writer.finish()), flush=True)


if __name__ == "__main__":
    main()
