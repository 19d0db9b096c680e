"""Chapter 2: kill a broker while a producer writes with acks=all and a consumer group reads. [A]

The killed broker is the coordinator of the group, so the group must find another coordinator while a member leaves
and the group rebalances. Later the broker restarts. The end counts records written, acknowledged, failed,
and read by the group. No record may be missing; groups read at least once, so repeated reads are shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import Progress

from ottla_cli.bars import progress
from ottla_cli.connecting import run
from ottla_cli.failure import Failure
from ottla_cli.local_cluster import LocalCluster
from ottla_cli.quantities import plural, show_count, show_duration
from ottla_cli.screen import table
from ottla_client import Admin, Consumer, NewTopic, Producer, RecordMetadata
from ottla_client.producer import OnDelivery
from ottla_core.real.clock import RealClock

TOPIC = "letters"
GROUP = "readers"
PARTITIONS = 6
REPLICAS = 3
MEMBERS = 3
_PER_SECOND = 1_000
_TICK_S = 0.02
#: The chapter fails if the group is not stable, or records are missing, after this time.
_PATIENCE_S = 60.0


class Tally:
    """Outcome of each letter."""

    def __init__(self, letters: int) -> None:
        self.letters = letters
        self.acknowledged = 0
        self.failures: list[Exception] = []
        self.slowest_s = 0.0
        self.read = 0
        #: How often the group read each letter.
        self._reads = bytearray(letters)

    def sent(self) -> OnDelivery:
        """The callback for the outcome of one send."""
        began = time.monotonic()

        def delivered(_where: RecordMetadata | None, error: Exception | None) -> None:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            if error is None:
                self.acknowledged += 1
            else:
                self.failures.append(error)

        return delivered

    def got(self, number: int) -> None:
        self.read += not self._reads[number]
        self._reads[number] = min(255, self._reads[number] + 1)

    @property
    def read_again(self) -> int:
        return sum(self._reads) - self.read


def show(console: Console, cluster: LocalCluster, letters: int) -> None:
    tally = Tally(letters)
    with progress(on=console, shown=True) as bar:
        run(_Scene(cluster, tally, bar).play())
    console.print()
    console.print(
        table(
            (
                "letters#",
                "acknowledged#",
                "failed#",
                "slowest write#",
                "read by the group#",
                "missing#",
                "read again#",
            ),
            [
                (
                    show_count(letters),
                    show_count(tally.acknowledged),
                    len(tally.failures),
                    show_duration(tally.slowest_s),
                    show_count(tally.read),
                    letters - tally.read,
                    tally.read_again,
                )
            ],
        )
    )
    check(tally)
    console.print("[green]✓[/] A broker died and came back; no write failed, and no record is lost.")


def check(tally: Tally) -> None:
    if tally.failures:
        raise Failure(f"{plural(len(tally.failures), 'write')} failed, the first with: {tally.failures[0]}")
    if tally.acknowledged != tally.letters or tally.read != tally.letters:
        raise Failure(
            f"Of {tally.letters} letters {tally.acknowledged} were acknowledged and {tally.read} read by the group."
        )


class _Scene:
    def __init__(self, cluster: LocalCluster, tally: Tally, bar: Progress) -> None:
        self._cluster = cluster
        self._tally = tally
        self._bar = bar
        self._clock = RealClock()
        self._bars = {
            what: bar.add_task(what, total=tally.letters) for what in ("write (acks=all)", "read (group)")
        }
        self._members: dict[str, Consumer] = {}
        #: One event per member; setting it makes the member leave the group.
        self._leaving = {f"reader-{number}": asyncio.Event() for number in range(1, MEMBERS + 1)}
        self._begin = asyncio.Event()
        self._written = 0

    async def play(self) -> None:
        async with Admin(self._cluster.grpc_bootstrap) as admin:
            topic = NewTopic(TOPIC, PARTITIONS, REPLICAS, {"min.insync.replicas": "2"})
            await admin.create_topics([topic])
            parts = [self._direct(admin), self._write(), *map(self._read, self._leaving)]
            tasks = [asyncio.create_task(part) for part in parts]
            try:
                # The first failure ends the chapter; without one, all tasks end by themselves.
                for done in asyncio.as_completed(tasks):
                    await done
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=_PATIENCE_S)

    async def _direct(self, admin: Admin) -> None:
        """The sequence of events."""
        letters, leaving = self._tally.letters, f"reader-{MEMBERS}"
        await self._until(self._is_shared, "the group to share the partitions")
        self._say(f"group {GROUP!r}: {self._shares()}")
        self._begin.set()
        await self._until_written(letters // 3)
        victim = await self._kill_coordinator(admin)
        await self._until_written(letters // 2)
        self._leaving[leaving].set()
        await self._until(
            lambda: leaving not in self._members and self._is_shared(), "the group to rebalance"
        )
        self._say(f"{leaving} left: {self._shares()}")
        await self._until_written(letters * 2 // 3)
        began = time.monotonic()
        await asyncio.to_thread(self._cluster.restart, victim)
        took = show_duration(time.monotonic() - began)
        self._say(f"[bold green]broker {victim} is back[/], started in {took}, and catches up")
        await self._until(
            lambda: self._tally.read >= letters, "the group to read all", _PATIENCE_S + letters / 100
        )
        for event in self._leaving.values():
            event.set()

    async def _write(self) -> None:
        """Write at a steady rate, so that the cost of the kill is visible."""
        await self._begin.wait()
        began = time.monotonic()
        async with Producer(self._cluster.grpc_bootstrap, acks="all") as producer:
            while self._written < self._tally.letters:
                due = min(self._tally.letters, int((time.monotonic() - began) * _PER_SECOND) + 1)
                for number in range(self._written, due):
                    text = f"{number} My dear Ottla, the broker is well again."
                    await producer.send(TOPIC, text.encode(), on_delivery=self._tally.sent())
                self._written = due
                await self._tick()

    async def _read(self, name: str) -> None:
        consumer = Consumer(
            self._cluster.grpc_bootstrap,
            group_id=GROUP,
            client_id=name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
        )
        async with consumer:
            consumer.subscribe([TOPIC])
            self._members[name] = consumer
            while not self._leaving[name].is_set():
                for record in await consumer.poll(timeout_ms=100):
                    self._tally.got(int(record.value.split()[0]))
        del self._members[name]

    async def _kill_coordinator(self, admin: Admin) -> int:
        victim = (await admin.describe_groups([GROUP]))[0].coordinator_id
        led = [
            p.partition for p in (await admin.describe_topics([TOPIC]))[0].partitions if p.leader == victim
        ]
        controls = (await admin.describe_cluster()).controller_id == victim
        roles = [
            f"led {_partitions(led)}",
            "coordinated the group",
            *(["was the controller"] if controls else []),
        ]
        self._cluster.kill(victim)
        self._say(f"[bold red]kill -9 broker {victim}[/]: it {', '.join(roles[:-1])} and {roles[-1]}")
        return victim

    # --- waiting and reporting ---

    def _is_shared(self) -> bool:
        shares = [len(each.assignment()) for each in self._members.values()]
        return all(shares) and sum(shares) == PARTITIONS

    def _shares(self) -> str:
        return " · ".join(
            f"{name} has {_partitions([tp.partition for tp in each.assignment()])}"
            for name, each in sorted(self._members.items())
        )

    async def _until_written(self, count: int) -> None:
        await self._until(
            lambda: self._written >= count, f"letter {count} to be written", _PATIENCE_S + count / 100
        )

    async def _until(self, is_so: Callable[[], bool], what: str, within_s: float = _PATIENCE_S) -> None:
        deadline = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > deadline:
                raise Failure(f"Waited {within_s:.0f} s for {what}, without success.")
            await self._tick()

    async def _tick(self) -> None:
        await self._clock.sleep(_TICK_S)
        for task, count in zip(
            self._bars.values(), (self._tally.acknowledged, self._tally.read), strict=True
        ):
            self._bar.update(task, completed=count)

    def _say(self, sentence: str) -> None:
        self._bar.console.print(f"  {sentence}", markup=True)


def _partitions(numbers: Sequence[int]) -> str:
    return ",".join(map(str, sorted(numbers))) or "none"
