"""Simulated brokers in one process: registered, admitted, with the image of the metadata, and without any log. [A]

    python -m ottla_bench.simulated_brokers '{"etcd": "127.0.0.1:2379", "brokers": [10, 11]}'

The store, the image and the registrations are the brokers' own code; the controller is always a real broker. With no
broker at all the process is an observer. They have no address, so that no failure detector removes them: `vanish`
revokes the lease of one, as its end would. One line of JSON on standard input is one command, and one line answers it.
Times are monotonic, the same clock in all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import structlog

from ottla_bench.takeover import Takeover
from ottla_broker.membership.registration import Registration
from ottla_broker.metadata.etcd import EtcdStore
from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_broker.metadata.image_update import updated
from ottla_broker.metadata.sections.partitions import PARTITIONS
from ottla_broker.metadata.sections.topics import TOPICS, StoredTopic
from ottla_broker.metadata.watcher import Metadata
from ottla_core.ports.store import BRANCHES_MAX, Branch, Changed, Entry, Put, Revision
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock

_WAIT_S = 120.0
_REPEATS = 50
_ANSWER_S = 300.0
#: Of which the size of an image without equal states is measured.
_DISTINCT_TOPICS = 100


class SimulatedBrokers:
    """The process, from outside."""

    def __init__(self, etcd: str, brokers: Sequence[int]) -> None:
        job = json.dumps({"etcd": etcd, "brokers": list(brokers)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla_bench.simulated_brokers", job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def ask(self, command: str, broker_id: int = -1) -> dict[str, float]:
        """RuntimeError when the process has ended; what was said is on standard error."""
        self.begin(command, broker_id)
        return self.answer()

    def begin(self, command: str, broker_id: int = -1) -> None:
        if self._process.stdin is None:
            raise RuntimeError("The simulated brokers have no input.")
        self._process.stdin.write(json.dumps({"do": command, "broker": broker_id}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, float]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError("The process with the simulated brokers has ended.")
        found: dict[str, float] = json.loads(line)
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(10)


class _Life:
    def __init__(self, etcd: str, brokers: Sequence[int]) -> None:
        self._clock, self._chance = RealClock(), RealChance()
        self._store = EtcdStore([etcd], "/ottla/ottla")
        self._metadata = Metadata(self._store, self._clock, self._chance)
        self._registrations = {i: self._registration(i) for i in brokers}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._takeover: asyncio.Task[dict[str, float]] | None = None

    def _registration(self, broker_id: int) -> Registration:
        broker = BrokerImage(broker_id, self._chance.uuid(), (), directories=(self._chance.uuid(),))
        return Registration(self._store, self._clock, self._metadata, broker)

    async def begin(self) -> None:
        await self._metadata.load()
        self._following = asyncio.ensure_future(self._metadata.run())
        for broker_id, registration in self._registrations.items():
            await registration.register(_WAIT_S)
            self._tasks[broker_id] = asyncio.ensure_future(registration.run())
        await self._metadata.wait_until(
            lambda image: all(image.is_admitted(i) for i in self._registrations), _WAIT_S
        )

    async def carry_out(self, command: str, broker_id: int) -> dict[str, float]:
        if command == "ready":
            return {"partitions": sum(len(t.partitions) for t in self._metadata.image.topics.values())}
        if command == "image":
            return await self._measure_image()
        if command == "vanish":
            taken = asyncio.ensure_future(self._taken_over(broker_id))
            await asyncio.sleep(0)
            self._tasks.pop(broker_id).cancel()
            began = time.monotonic()
            await self._registrations.pop(broker_id).withdraw()
            return {**await taken, "began": began}
        if command == "expect":  # Answered at once; `taken` when it has happened.
            self._takeover = asyncio.ensure_future(self._taken_over(broker_id))
            await asyncio.sleep(0)
            return {}
        if command == "taken" and self._takeover is not None:
            return await self._takeover
        raise ValueError(f"no command {command!r}")

    async def _taken_over(self, broker_id: int) -> dict[str, float]:
        """When the image lost the broker, and when it named the first and the last new leader."""
        takeover = Takeover(self._metadata.image, broker_id)
        seen: dict[str, float] = {}
        done = asyncio.Event()
        before = self._metadata.image.revision

        def on_image(old: Any, new: Any) -> None:
            now = time.monotonic()
            if broker_id not in new.brokers:
                seen.setdefault("gone", now)
            takeover.note(old, new)
            if takeover.left < takeover.total:
                seen.setdefault("first", now)
            if not takeover.left:
                seen.setdefault("last", now)
                done.set()

        stop = self._metadata.subscribe(on_image)
        try:
            async with asyncio.timeout(_WAIT_S):
                await done.wait()
        finally:
            stop()
        return {**seen, "led": takeover.total, "revisions": self._metadata.image.revision - before}

    async def _measure_image(self) -> dict[str, float]:
        shown: list[float] = []
        for turn in range(_REPEATS):
            began = time.perf_counter()
            put = Put("bench", str(turn).encode())  # Of no section: every image skips it.
            outcome = await self._store.transact((), [Branch((), (put,))])
            await self._metadata.wait_revision(outcome.revision, _WAIT_S)
            shown.append(time.perf_counter() - began)
        one = [self._apply(1) for _ in range(_REPEATS)]
        full = [self._apply(BRANCHES_MAX) for _ in range(_REPEATS)]
        again = Metadata(self._store, self._clock, self._chance)
        began, cpu = time.perf_counter(), time.process_time()
        await again.load()
        read_s, read_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        return {
            "distinct_bytes": self._distinct_bytes(),
            "read_s": read_s,
            "read_cpu_s": read_cpu_s,
            "shown_ms": median(shown) * 1000,
            "apply_one_ms": median(one) * 1000,
            "apply_full_ms": median(full) * 1000,
        }

    def _distinct_bytes(self) -> float:
        """Of Python's memory for one partition, when no two partitions are in the same state."""
        entries: list[Entry] = []
        count = 0
        for topic in list(self._metadata.image.topics.values())[:_DISTINCT_TOPICS]:
            stored = StoredTopic(topic.id, len(topic.partitions), {})
            entries.append(Entry(TOPICS.key(topic.name), TOPICS.encode(stored), 1, 1))
            for index, partition in enumerate(topic.partitions):
                count += 1
                value = PARTITIONS.encode(replace(partition, leader_epoch=1_000 + count))
                entries.append(Entry(PARTITIONS.key((topic.id, index)), value, 1, 1_000 + count))
        changes = tuple(map(Changed, entries))
        tracemalloc.start()
        made = updated(ClusterImage(""), Revision(1_000_000, changes))
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size / count if made.image.topics else 0.0

    def _apply(self, count: int) -> float:
        """CPU time to apply one transaction with so many elections of partitions that follow each other."""
        image = self._metadata.image
        revision = image.revision + 1
        entries: list[Entry] = []
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions[: count - len(entries)]):
                # Values that were not decoded before, as after an election.
                value = PARTITIONS.encode(partition).replace(b'"epoch":', b'"epoch":%d' % (count * 1000))
                entries.append(Entry(PARTITIONS.key((topic.id, index)), value, 1, revision))
            if len(entries) == count:
                break
        changes = tuple(map(Changed, entries))
        began = time.process_time()
        updated(image, Revision(revision, changes))
        return time.process_time() - began


async def _serve(job: dict[str, Any]) -> None:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )  # Answers are on standard output.
    life = _Life(job["etcd"], job["brokers"])
    await life.begin()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        async with asyncio.timeout(_ANSWER_S):
            answer = await life.carry_out(command["do"], command["broker"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
