"""Clients of a world: writers whose every value is unique, readers that remember all they saw.

Half of the reads go to any broker, which may follow.

A plain writer sends each value once: what it got no answer for may be there or not, and is never there twice. Those
with acks=all hold the cluster to its promise, those with acks=1 only make logs part from each other. Idempotent and
group clients are in `clients.py`. All find leaders as real ones do, by asking some broker, whose answer may be old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ottla_broker.controller.commands.create_topics import CreateTopics
from ottla_broker.controller.commands.delete_topics import DeleteTopics
from ottla_broker.controller.commands.grow_topic import GrowTopic
from ottla_broker.metadata.image import INTERNAL_TOPICS
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    Appended,
    Fetched,
    FetchWant,
    FoundOffset,
    NewTopic,
)
from ottla_broker.service.groups import OFFSETS_TOPIC
from ottla_broker.service.transactions import TRANSACTIONS_TOPIC
from ottla_core.errors import InvalidProducerEpoch, OffsetOutOfRange, OutOfOrderSequenceNumber, RequestError
from ottla_core.ids import TopicPartition
from sim.batches import Rec, make_batch
from sim.checkers import FICKLE, spot_of
from sim.clients import clients_of
from sim.loop import chance_for
from sim.members import MemberGroup
from sim.moves import move
from sim.spots import Spot
from sim.transactional import all_in, committed_in
from sim.workers import WorkerGroup
from sim.world import Unreachable

if TYPE_CHECKING:
    from sim.world import Process, World

T = TypeVar("T")

#: Name -> settings. Three ways to be durable: alone if need be, two of three, and flushed on two of three.
TOPICS = {
    "one": {"min.insync.replicas": "1"},
    "two": {"min.insync.replicas": "2", "segment.ms": "3000"},
    "flushed": {"min.insync.replicas": "2", "flush.before.ack": "true"},
}
#: Where records are deleted: segments so short that whole files go with them, soon.
_TRIMMED = {"segment.ms": "400", "file.delete.delay.ms": "1500"}
#: Where the cleaner has something to do all the time.
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "1500",
}
PARTITIONS = [TopicPartition(name, 0) for name in TOPICS]
#: A name that comes, grows, goes and comes again.
FICKLE_PARTITIONS = [TopicPartition(FICKLE, index) for index in range(3)]
_LATE_MAX = 3
_WRITERS = 4
_TIMEOUT_S = 2.5
_PATIENCE_S = 9.0
_FETCH_BYTES = 1 << 20
#: Final for a producer, and never the truth for one that keeps to its numbers.
_REFUSALS = (OutOfOrderSequenceNumber, InvalidProducerEpoch)


def topics_of(world: World) -> dict[str, dict[str, str]]:
    """The topics of a world and their settings; in some all of them ask for flushes, in some for two copies."""
    more = {"flush.before.ack": "true"} if world.is_flushed else {}
    if world.is_strict:
        more["min.insync.replicas"] = "2"  # Else hardly any loss of a disk is within the budget.
    if world.shape.is_trimmed:
        more.update(_TRIMMED)
    return {name: {**config, **more} for name, config in TOPICS.items()}


class Workload:
    def __init__(self, world: World) -> None:
        self.world = self._world = world
        self._chance = chance_for(world.seed, "workload")
        self._replicas = chance_for(world.seed, "replicas to read from")
        self._serial = 0
        self._epochs: dict[Spot, int] = {}
        #: No more moves, so that those under way can complete when the faults are over.
        self.is_settling = False
        self.groups: list[MemberGroup] = []
        if world.shape.has_groups:
            self.groups.append(MemberGroup(self, "readers", (*TOPICS, FICKLE)))
            if world.shape.is_transactional:
                self.groups.append(WorkerGroup(self))
        self.is_over = False
        #: Topics that were made under load, for transactions to write to.
        self.late_partitions: list[TopicPartition] = []

    # ------------------------------------------------------------------ topics

    async def create_topics(self) -> None:
        """Ask whoever is controller, until all topics are there."""
        brokers = sorted(self._world.machines)
        compacted = _COMPACTED if self._world.shape.is_compacted else {"cleanup.policy": "compact"}
        internal = {**topics_of(self._world)["one"], **compacted}
        copies = self._world.shape.replicas
        wanted = {**topics_of(self._world), OFFSETS_TOPIC: internal}
        if self._world.shape.is_transactional:
            wanted[TRANSACTIONS_TOPIC] = internal
        topics = [
            NewTopic(name, config=config, assignments=(tuple((brokers * 2)[number : number + copies]),))
            for number, (name, config) in enumerate(wanted.items())
        ]
        while len(self._world.states()) < len(topics):
            await self._world.clock.sleep(0.05)
            for process in self._world.serving:
                controller = process.broker._controller
                if controller.is_active:
                    results = await self._world.call(
                        process, lambda c=controller: c.execute(CreateTopics(tuple(topics))), 5.0
                    )  # type: ignore[misc]
                    assert [r.error for r in results] == [None] * len(topics)

    async def _garden(self) -> None:
        """Create, grow and delete topics of one name, whatever becomes of each wish."""
        world, chance = self._world, self._chance
        while not self.is_over:
            await world.clock.sleep(0.2 + chance.fraction() * 1.2)
            controllers = [p for p in world.serving if p.broker._controller.is_active]
            if not controllers or world.is_garden_closed:
                continue
            process = controllers[chance.below(len(controllers))]
            controller = process.broker._controller
            existing = process.broker._metadata.image.topics.get(FICKLE)
            with suppress(RequestError, Unreachable):
                if existing is None:
                    config = list(topics_of(world).values())[chance.below(len(TOPICS))]
                    new = NewTopic(FICKLE, 1 + chance.below(2), world.shape.replicas, config)
                    await world.call(process, lambda: controller.execute(CreateTopics((new,))), 3.0)  # noqa: B023
                elif chance.below(2) and len(existing.partitions) < len(FICKLE_PARTITIONS):
                    more = len(existing.partitions) + 1
                    await world.call(process, lambda: controller.execute(GrowTopic(FICKLE, more)), 3.0)  # noqa: B023
                else:
                    await world.call(process, lambda: controller.execute(DeleteTopics((FICKLE,))), 3.0)  # noqa: B023

    async def create_late(self, brokers: list[int]) -> None:
        """One more topic, which stays; transactions write to it at once."""
        world, tp = self.world, TopicPartition(f"late-{len(self.late_partitions)}", 0)
        process = next((p for p in world.serving if p.broker._controller.is_active), None)
        if process is None or len(self.late_partitions) >= _LATE_MAX:
            return
        controller, copies = process.broker._controller, min(world.shape.replicas, len(brokers))
        new = NewTopic(tp.topic, config=topics_of(world)["one"], assignments=(tuple(brokers[:copies]),))
        self.late_partitions.append(tp)
        with suppress(RequestError, Unreachable):
            await world.call(process, lambda: controller.execute(CreateTopics((new,))), 1.0)

    async def renew_fickle(self) -> None:
        """Delete the topic that comes and goes, and make it again at once, if anybody can."""
        world = self._world
        process = next((p for p in world.serving if p.broker._controller.is_active), None)
        if process is not None:
            controller = process.broker._controller
            new = NewTopic(FICKLE, 1, world.shape.replicas, topics_of(world)["one"])
            with suppress(RequestError, Unreachable):
                await world.call(process, lambda: controller.execute(DeleteTopics((FICKLE,))), 3.0)
                await world.call(process, lambda: controller.execute(CreateTopics((new,))), 3.0)

    # ------------------------------------------------------------------ load

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(_WRITERS // 2 if self._world.shape.is_transactional or self.groups else _WRITERS):
                group.create_task(self._write())
            for tp in (*PARTITIONS, FICKLE_PARTITIONS[0]):
                group.create_task(self._read(tp))
            group.create_task(self._garden())
            group.create_task(move(self))
            for client in clients_of(self):
                group.create_task(client)

    async def _write(self) -> None:
        chance = self._chance
        while not self.is_over:
            some = PARTITIONS if chance.below(5) else FICKLE_PARTITIONS
            tp = some[chance.below(len(some))]
            if self._world.favourite is not None and chance.below(4):
                tp = self._world.favourite
            acks = 1 if chance.below(4) == 0 else ACKS_ALL
            burst = 1 + (chance.below(12) if chance.below(6) == 0 else 0)
            for _ in range(burst):
                await self.write(tp, acks)
            await self._world.clock.sleep(chance.fraction() * 0.25)

    async def write(self, tp: TopicPartition, acks: int) -> bool:
        """One batch, tried once; whether it was acknowledged."""
        world, chance = self._world, self._chance
        values = []
        for _ in range(1 + chance.below(3)):
            self._serial += 1
            values.append(f"{self._serial}:{'x' * chance.below(120)}".encode())
        batch = make_batch([Rec(None, value, world.clock.wall_ms()) for value in values])
        timeout_s = _PATIENCE_S if chance.below(8) == 0 else _TIMEOUT_S
        try:
            await self.send(tp, batch, values, acks, timeout_s)
        except (RequestError, Unreachable):
            await world.clock.sleep(0.02 + chance.fraction() * 0.2)
            return False
        return True

    async def send(
        self, tp: TopicPartition, batch: bytes, values: list[bytes], acks: int, timeout_s: float
    ) -> None:
        """One attempt, told to the checkers."""
        world, process = self._world, self.leader(tp)
        try:
            spot, appended = await world.call(
                process, lambda: self._append(process, tp, batch, values, acks, timeout_s), timeout_s
            )  # type: ignore[arg-type]
        except (RequestError, Unreachable) as error:
            world.note(f"write {values[0][:8]!r} to {tp} acks={acks}: {error!r}"[:150])
            if isinstance(error, _REFUSALS) and self._is_leader(tp, process):
                world.checkers.fail(f"I5 {tp}: {values[0]!r} was refused: {error!r}")
            raise
        if acks == ACKS_ALL:
            for number, value in enumerate(values):
                world.checkers.on_acknowledged(spot, appended.base_offset + number, value)
        by = process and process.place
        world.note(f"write {values[0][:8]!r} to {tp} acks={acks}: at {appended.base_offset} by {by}")

    async def _append(
        self,
        process: Process,
        tp: TopicPartition,
        batch: bytes,
        values: list[bytes],
        acks: int,
        timeout_s: float,
    ) -> tuple[Spot, Appended]:
        """In the broker's place, as an edge does it."""
        records, partition = process.broker.services.records, process.broker._host.find(tp)
        spot = spot_of(partition)
        self._world.checkers.on_sent(spot, values)
        appended = records.append(tp, batch, acks)
        wait = records.acknowledged(tp, appended, acks, timeout_s)
        if wait is not None:
            await wait
        elif acks == ACKS_ALL:
            self._world.checkers.on_acknowledging(partition, appended.last_offset)
        return spot, appended

    async def _read(self, tp: TopicPartition) -> None:
        position, known = 0, None
        while not self.is_over:
            try:
                from_any = self._replicas.below(2) == 1
                spot, got = await self.fetched(tp, position, 0.5, from_any=from_any)
            except OffsetOutOfRange as error:
                if from_any:
                    continue  # A follower may lag: as clients do, ask again, at the leader in the end.
                if known is not None and position < (first := self._world.checkers.trimmed.get(known, 0)):
                    position = first  # Deleted, as somebody wished.
                    continue
                if known is not None and known in self._world.states() and tp.topic != FICKLE:
                    self._world.checkers.fail(f"I8 {tp}: a reader at {position} was told {error}")
                    return
                position, known = 0, None
                continue
            except (RequestError, Unreachable):
                await self._world.clock.sleep(0.1)
                continue
            if known not in (None, spot):
                position, known = 0, None  # Another topic of the same name.
                continue
            known = spot
            with suppress(RequestError, Unreachable):
                await self._latest(tp)
            found, after = all_in(got, position)
            if after > max(got.high_watermark, position):
                self._world.checkers.fail(f"I8 {spot}: read up to {after}, above {got.high_watermark}")
            for offset, value in found.items():
                self._world.checkers.on_read(spot, offset, value)
            position = after
            await self._world.clock.sleep(0.05)

    async def fetched(
        self,
        tp: TopicPartition,
        offset: int,
        wait_s: float,
        *,
        from_any: bool = False,
        read_committed: bool = False,
    ) -> tuple[Spot, Fetched]:
        """A response of the leader, or of any broker (KIP-392)."""
        process, serving = self.leader(tp), self._world.serving
        if from_any and serving:
            process = serving[self._replicas.below(len(serving))]

        async def work() -> tuple[Spot, Fetched]:
            assert process is not None
            partition = process.broker._host.find(tp)
            spot = spot_of(partition)
            # As clients do (KIP-320): an epoch that was seen once is not forgotten, so an old leader cannot mislead.
            want = FetchWant(tp, offset, _FETCH_BYTES, self._epochs.get(spot, -1))
            found = process.broker.services.records.fetch(
                [want],
                max_wait_s=wait_s,
                min_bytes=1,
                max_bytes=_FETCH_BYTES,
                read_committed=read_committed,
                rack="" if from_any else None,
            )
            (got,) = found if isinstance(found, list) else await found
            if process.broker._host.find(tp) is not partition:
                raise Unreachable("the topic is another by now")
            return spot, got

        spot, got = await self._world.call(process, work, wait_s + 1.0)
        if got.error is not None:
            raise got.error
        return spot, got

    async def _earliest(self, spot: Spot) -> int:
        """Where its log begins, if somebody has deleted records."""
        if not self._world.checkers.trimmed.get(spot):
            return 0
        process = self.leader(spot.tp)

        async def work() -> int:
            assert process is not None
            found = process.broker.services.records.list_offset(spot.tp, EARLIEST_TIMESTAMP)
            assert isinstance(found, FoundOffset)
            return found.offset

        return await self._world.call(process, work, 1.0)

    async def _latest(self, tp: TopicPartition) -> None:
        process = self.leader(tp)

        async def work() -> None:
            assert process is not None
            found = process.broker.services.records.list_offset(tp, LATEST_TIMESTAMP)
            assert isinstance(found, FoundOffset)
            self._world.checkers.on_latest(process, process.broker._host.find(tp), found.offset)

        await self._world.call(process, work, 1.0)

    def leader(self, tp: TopicPartition) -> Process | None:
        """As somebody's image says, new or old."""
        serving = self._world.serving
        if not serving:
            return None
        image = serving[self._chance.below(len(serving))].broker._metadata.image
        state = image.partition(tp)
        if state is None:
            return None
        spot = Spot(tp.topic, image.topics[tp.topic].id, tp.partition)
        self._epochs[spot] = max(self._epochs.get(spot, -1), state.leader_epoch)
        machine = self._world.machines.get(state.leader)
        return None if machine is None else machine.process

    def _is_leader(self, tp: TopicPartition, process: Process | None) -> bool:
        states = (state for spot, state in self._world.states().items() if spot.tp == tp)
        return process is not None and any(state.leader == process.id for state in states)

    async def everything(
        self, limit_s: float, *, read_committed: bool = False
    ) -> dict[Spot, dict[int, bytes]]:
        """All that is readable now. As clients do, it asks again where a leadership has just moved."""
        logs: dict[Spot, dict[int, bytes]] = {}
        deadline = self._world.clock.monotonic() + limit_s
        for spot in self.open_partitions():
            log: dict[int, bytes] = {}
            try:
                position, before = await self._patiently(spot, partial(self._earliest, spot), deadline), -1
                while position != before:
                    ask = partial(self.fetched, spot.tp, position, 0.0, read_committed=read_committed)
                    _, got = await self._patiently(spot, ask, deadline)
                    found, after = (committed_in if read_committed else all_in)(got, position)
                    log.update(found)
                    before, position = position, after
            except (RequestError, Unreachable):
                if spot in self._world.states():
                    raise
            else:
                logs[spot] = log
        return logs

    async def _patiently(self, spot: Spot, ask: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Until there is an answer, or the partition was deleted: a wish may be carried out late."""
        while True:
            try:
                return await ask()
            except (RequestError, Unreachable) as error:
                final = isinstance(error, RequestError) and not error.retriable
                if final or spot not in self._world.states() or self._world.clock.monotonic() > deadline:
                    raise
                await self._world.clock.sleep(0.1)

    def open_partitions(self) -> list[Spot]:
        """Those that clients may write and read."""
        return [spot for spot in self._world.states() if spot.topic not in INTERNAL_TOPICS]
