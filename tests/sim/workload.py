"""Clients of a world: writers whose every value is unique, readers that remember all they saw.

A writer sends each value once: what it got no answer for may be there or not, and is never there twice. Writers with
acks=all hold the cluster to its promise, those with acks=1 only make logs part from each other. Clients find leaders
as real ones do, by asking some broker, whose answer may be old.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.requests import Appended, Fetched, FetchWant, NewTopic
from ottla_core.errors import OffsetOutOfRange, RequestError
from ottla_core.ids import TopicPartition
from sim.batches import Rec, make_batch, read_batches
from sim.loop import chance_for

if TYPE_CHECKING:
    from sim.world import Process, World

#: Name -> settings. Three ways to be durable: alone if need be, two of three, and flushed on two of three.
TOPICS = {
    "one": {"min.insync.replicas": "1"},
    "two": {"min.insync.replicas": "2", "segment.ms": "3000"},
    "flushed": {"min.insync.replicas": "2", "flush.before.ack": "true"},
}
PARTITIONS = [TopicPartition(name, 0) for name in TOPICS]
_WRITERS = 4
_TIMEOUT_S = 2.5
_PATIENCE_S = 9.0
_FETCH_BYTES = 1 << 20


def topics_of(world: World) -> dict[str, dict[str, str]]:
    """The topics of a world and their settings; in some all of them ask for flushes, in some for two copies."""
    more = {"flush.before.ack": "true"} if world.is_flushed else {}
    if world.is_strict:
        more["min.insync.replicas"] = "2"  # Else hardly any loss of a disk is within the budget.
    return {name: {**config, **more} for name, config in TOPICS.items()}


class Workload:
    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = chance_for(world.seed, "workload")
        self._serial = 0
        self._epochs: dict[TopicPartition, int] = {}
        self.is_over = False

    # ------------------------------------------------------------------ topics

    async def create_topics(self) -> None:
        """Ask whoever is controller, until all topics are there."""
        brokers = sorted(self._world.machines)
        topics = [
            NewTopic(name, config=config, assignments=(tuple((brokers * 2)[number : number + 3]),))
            for number, (name, config) in enumerate(topics_of(self._world).items())
        ]
        while len(self._world.states()) < len(TOPICS):
            await self._world.clock.sleep(0.05)
            for process in self._world.serving:
                controller = process.broker._controller
                if controller.is_active:
                    results = await self._world.call(
                        process, lambda c=controller: c.create_topics(topics), 5.0
                    )  # type: ignore[misc]
                    assert [r.error for r in results] == [None] * len(topics)

    # ------------------------------------------------------------------ load

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_WRITERS):
                group.create_task(self._write(number))
            for tp in PARTITIONS:
                group.create_task(self._read(tp))

    async def _write(self, number: int) -> None:
        chance = self._chance
        while not self.is_over:
            tp = PARTITIONS[chance.below(len(PARTITIONS))]
            acks = 1 if chance.below(4) == 0 else ACKS_ALL
            burst = 1 + (chance.below(12) if chance.below(6) == 0 else 0)
            for _ in range(burst):
                await self.write(tp, acks)
            await self._world.clock.sleep(chance.fraction() * 0.25)

    async def write(self, tp: TopicPartition, acks: int) -> bool:
        """One batch, tried once; whether it was acknowledged."""
        from sim.world import Unreachable

        world, chance = self._world, self._chance
        values = []
        for _ in range(1 + chance.below(3)):
            self._serial += 1
            values.append(f"{self._serial}:{'x' * chance.below(120)}".encode())
        batch = make_batch([Rec(None, value, world.clock.wall_ms()) for value in values])
        process = self._leader(tp)
        timeout_s = _PATIENCE_S if chance.below(8) == 0 else _TIMEOUT_S
        try:
            appended = await world.call(
                process, lambda: self._append(process, tp, batch, acks, timeout_s), timeout_s
            )  # type: ignore[arg-type]
        except (RequestError, Unreachable) as error:
            world.note(f"write {values[0][:8]!r} to {tp} acks={acks}: {error!r}"[:150])
            await world.clock.sleep(0.02 + chance.fraction() * 0.2)
            return False
        if acks == ACKS_ALL:
            for number, value in enumerate(values):
                world.checkers.on_acknowledged(tp, appended.base_offset + number, value)
        world.note(
            f"write {values[0][:8]!r} to {tp} acks={acks}: at {appended.base_offset} by {process and process.place}"
        )
        return True

    async def _append(
        self, process: Process, tp: TopicPartition, batch: bytes, acks: int, timeout_s: float
    ) -> Appended:
        """In the broker's place, as an edge does it."""
        records = process.broker.services.records
        appended = records.append(tp, batch, acks)
        wait = records.acknowledged(tp, appended, acks, timeout_s)
        if wait is not None:
            await wait
        if acks == ACKS_ALL and wait is None:
            self._world.checkers.on_acknowledging(process.broker._host.find(tp), appended.last_offset)
        return appended

    async def _read(self, tp: TopicPartition) -> None:
        from sim.world import Unreachable

        position = 0
        while not self.is_over:
            try:
                found = await self.fetch(tp, position, 0.5)
            except OffsetOutOfRange as error:
                self._world.checkers.fail(f"I8 {tp}: a reader at {position} was told {error}")
                return
            except (RequestError, Unreachable):
                await self._world.clock.sleep(0.1)
                continue
            for offset, value in found.items():
                if offset >= position:
                    self._world.checkers.on_read(tp, offset, value)
                    position = offset + 1
            await self._world.clock.sleep(0.05)

    async def fetch(self, tp: TopicPartition, offset: int, wait_s: float) -> dict[int, bytes]:
        process = self._leader(tp)
        # As clients do (KIP-320): an epoch that was seen once is not forgotten, so an old leader cannot mislead.
        want = FetchWant(tp, offset, _FETCH_BYTES, self._epochs.get(tp, -1))

        async def work() -> list[Fetched]:
            assert process is not None
            found = process.broker.services.records.fetch(
                [want], max_wait_s=wait_s, min_bytes=1, max_bytes=_FETCH_BYTES
            )
            return found if isinstance(found, list) else await found

        (got,) = await self._world.call(process, work, wait_s + 1.0)
        if got.error is not None:
            raise got.error
        return {
            at: record.value or b"" for at, record in read_batches(got.records) if at < got.high_watermark
        }

    def _leader(self, tp: TopicPartition) -> Process | None:
        """As somebody's image says, new or old."""
        serving = self._world.serving
        if not serving:
            return None
        asked = serving[self._chance.below(len(serving))]
        state = asked.broker._metadata.image.partition(tp)
        if state is not None:
            self._epochs[tp] = max(self._epochs.get(tp, -1), state.leader_epoch)
        machine = None if state is None else self._world.machines.get(state.leader)
        return None if machine is None else machine.process

    async def everything(self) -> dict[TopicPartition, dict[int, bytes]]:
        """All that is readable now."""
        logs: dict[TopicPartition, dict[int, bytes]] = {}
        for tp in PARTITIONS:
            log = logs.setdefault(tp, {})
            while found := {k: v for k, v in (await self.fetch(tp, len(log), 0.0)).items() if k >= len(log)}:
                log.update(found)
        return logs
