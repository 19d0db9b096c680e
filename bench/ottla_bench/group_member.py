"""Members of a group in one process, as `make bench-groups` runs them: polls, and what each holds over time. [A]

    python -m ottla_bench.group_member '{"bootstrap": …, "members": 10, …}'

Stock librdkafka consumers, one thread each, with the client's defaults but for the protocol. Every change of a member's
assignment and the longest pause between two of its records are noted with a monotonic time, which is the same clock in
all processes of a machine. Commands on standard input, each answered by one line of JSON: `look` (number of partitions
by member), `phase` (what was noticed since the last one), `stop`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from confluent_kafka import Consumer

_POLL_S = 0.02
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class MemberJob:
    bootstrap: str
    group: str
    topic: str
    protocol: str
    members: int = 1
    #: Of classic members, librdkafka's `partition.assignment.strategy`.
    strategy: str = "range,roundrobin"

    def settings(self) -> dict[str, Any]:
        own = {"partition.assignment.strategy": self.strategy} if self.protocol == "classic" else {}
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "group.protocol": self.protocol,
            "auto.offset.reset": "latest",
            "log_level": 3,
            **own,
        }


@dataclass(slots=True)
class Seen:
    """What one member noticed since the phase began."""

    #: (time, number of partitions) at each change.
    held: list[tuple[float, int]] = field(default_factory=list)
    records: int = 0
    last_record_s: float = 0.0
    #: The longest pause between two records, and when it ended.
    longest_pause_s: float = 0.0
    pause_ended_s: float = 0.0


class Members:
    """The process, as its parent sees it."""

    def __init__(self, job: MemberJob) -> None:
        command = [sys.executable, "-P", "-m", "ottla_bench.group_member", json.dumps(asdict(job))]
        self.began = time.monotonic()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._say("look")  # It runs.

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate("stop\n", timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def held(self) -> list[int]:
        return [int(each) for each in self._say("look")]

    def phase(self) -> list[Seen]:
        return [Seen(**each) for each in self._say("phase")]

    def _say(self, command: str) -> list[Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the members have no pipes")
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("The members of the group have ended; their message is above.")
        answer: list[Any] = json.loads(line)
        return answer


class Member(threading.Thread):
    def __init__(self, job: MemberJob) -> None:
        super().__init__(daemon=True)
        self._job = job
        self._lock = threading.Lock()
        self._seen = Seen()
        self._held = 0
        self.stop = threading.Event()

    def run(self) -> None:
        consumer = Consumer(self._job.settings())
        consumer.subscribe([self._job.topic])
        while not self.stop.is_set():
            messages = consumer.consume(500, _POLL_S)
            now = time.monotonic()
            held = len(consumer.assignment())
            with self._lock:
                seen = self._seen
                if held != self._held:
                    self._held = held
                    seen.held.append((now, held))
                if messages:
                    pause_s = now - seen.last_record_s
                    if seen.last_record_s and pause_s > seen.longest_pause_s:
                        seen.longest_pause_s, seen.pause_ended_s = pause_s, now
                    seen.last_record_s = now
                    seen.records += len(messages)
        consumer.close()

    @property
    def held(self) -> int:
        return self._held

    def phase(self) -> dict[str, Any]:
        """What was noticed in the phase that ends; the next one begins."""
        with self._lock:
            seen = self._seen
            self._seen = Seen(last_record_s=seen.last_record_s)
            now = time.monotonic()
            if seen.last_record_s and now - seen.last_record_s > seen.longest_pause_s:
                seen.longest_pause_s, seen.pause_ended_s = now - seen.last_record_s, now
            return asdict(seen)


def main() -> None:
    job = MemberJob(**json.loads(sys.argv[1]))
    members = [Member(job) for _ in range(job.members)]
    for member in members:
        member.start()
    for line in sys.stdin:
        looks = line.strip() == "look"
        print(json.dumps([each.held if looks else each.phase() for each in members]), flush=True)
        if line.strip() == "stop":
            break
    for member in members:
        member.stop.set()
    for member in members:
        member.join(30.0)


if __name__ == "__main__":
    main()
