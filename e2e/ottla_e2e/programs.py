"""Programs of `pods/` that run beside a step, and what they saw at their end. [A]"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen

from ottla_e2e.kube import Kube, Object
from ottla_e2e.objects import CLIENT, KAFKA
from ottla_e2e.say import Fault, say


def start(kube: Kube, name: str, *arguments: str) -> Popen[str]:
    """In the client's pod; `finish` ends it."""
    command = ["python3", f"/programs/{name}", "--bootstrap", KAFKA, *arguments]
    return kube.start("exec", "-i", CLIENT, "--", *command)


def finish(process: Popen[str]) -> Object:
    """Close its standard input; returns its last line."""
    out, err = process.communicate(timeout=120)
    if process.returncode:
        raise Fault(f"a program in a pod ended with {process.returncode}: {err[-2000:]}")
    found: Object = json.loads(out.strip().splitlines()[-1])
    return found


class Log:
    """The records of one topic: numbered, written by a stock client, and compared with what can be read."""

    def __init__(self, kube: Kube, topic: str) -> None:
        self._kube = kube
        self._topic = topic
        self._file = f"/tmp/{topic}.acked"
        self.written = 0

    def write(self, count: int) -> Object:
        """As fast as it goes."""
        arguments = (*self._arguments(), "--count", str(count))
        seen: Object = self._kube.python(CLIENT, "write.py", "--bootstrap", KAFKA, *arguments)
        if seen["acked"] != count or seen["failed"]:
            raise Fault(f"expected: {count} acknowledged writes, but: {seen}")
        self.written += count
        return seen

    @contextmanager
    def writing(self, *, every_ms: int) -> Iterator[Object]:
        """One record after another meanwhile; the results are available at the end."""
        seen: Object = {}
        writer = start(self._kube, "write.py", *self._arguments(), "--every-ms", str(every_ms))
        try:
            yield seen
        finally:
            seen.update(finish(writer))
        if seen["failed"] or seen["unanswered"]:
            raise Fault(f"expected: every write answered, but: {seen}")
        self.written += seen["acked"]
        say(
            f"    {seen['acked']:,} acknowledged, none failed; longest gap {seen['longest_gap_ms']} ms,"
            f" slowest write {seen['slowest_ms']} ms"
        )

    def check(self) -> None:
        """All acknowledged records are there."""
        arguments = ["--bootstrap", KAFKA, "--topic", self._topic, "--log", self._file]
        seen = self._kube.python(CLIENT, "check.py", *arguments)
        if seen["acked"] != self.written or seen["missing"]:
            raise Fault(f"expected: all of {self.written} acknowledged records still there, but: {seen}")
        say(f"    all {seen['acked']:,} acknowledged records are there ({seen['repeated']} twice)")

    def _arguments(self) -> tuple[str, ...]:
        return ("--topic", self._topic, "--log", self._file, "--first", str(self.written))
