"""Clients that keep state of their own: idempotent producers that try again, and groups that commit offsets.

An idempotent producer has one batch under way and sends it again, as it is, until it is acknowledged, sometimes long
before the first attempt can have failed and sometimes once more after that. Whatever happens to the cluster its
records are there once and in order (I5), and no leader refuses it for its sequence, unless it was just replaced
and cannot know it yet.

A group commits rising offsets, one at a time, and reads back what is committed (I11). A trimmer deletes records of the
topics that stay, up to some committed offset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla_broker.group.messages import OffsetToCommit
from ottla_broker.partition.partition import ACKS_ALL
from ottla_core.errors import RequestError
from ottla_core.ids import NO_BROKER, TopicPartition
from sim.batches import Rec, make_batch
from sim.checkers import spot_of
from sim.loop import chance_for
from sim.transactional import transactional_clients

if TYPE_CHECKING:
    from sim.workload import Workload
    from sim.world import Process

_PRODUCERS = 2
_GROUPS = 2


def clients_of(workload: Workload) -> Iterator[Coroutine[Any, Any, None]]:
    shape = workload.world.shape
    is_plain = not (shape.is_transactional or shape.has_groups)
    for number in range(_PRODUCERS if is_plain else 1):
        yield Producer(workload, number).run()
    for number in range(_GROUPS if is_plain else 1):
        yield Group(workload, f"group-{number}").run()
    for group in workload.groups:
        yield group.run()
    if shape.is_transactional:
        yield from transactional_clients(workload)
    if shape.is_trimmed:
        yield Trimmer(workload).run()


class Producer:
    def __init__(self, workload: Workload, number: int) -> None:
        self._workload, self._world = workload, workload.world
        self._number = number
        self._chance = chance_for(self._world.seed, f"producer {number}")
        self._id = -1
        self._sent: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        from sim.workload import PARTITIONS

        chance = self._chance
        while not self._workload.is_over:
            if self._id < 0:
                await self._introduce()
            else:
                await self._produce(PARTITIONS[chance.below(len(PARTITIONS))])
            await self._world.clock.sleep(chance.fraction() * 0.3)

    async def _introduce(self) -> None:
        from sim.world import Unreachable

        serving = self._world.serving
        process = serving[self._chance.below(len(serving))] if serving else None
        try:
            identity = await self._world.call(
                process,
                process.broker.services.records.init_producer_id,
                3.0,  # type: ignore[union-attr]
            )
            self._id = identity.producer_id
        except (RequestError, Unreachable):
            return

    async def _produce(self, tp: TopicPartition) -> None:
        chance, first = self._chance, self._sent.get(tp, 0)
        values = [f"p{self._number}.{first + n}:{tp}".encode() for n in range(1 + chance.below(3))]
        batch = make_batch(
            [Rec(None, value, self._world.clock.wall_ms()) for value in values],
            producer_id=self._id,
            epoch=0,
            sequence=first,
        )
        while not await self._try(tp, batch, values):
            await self._world.clock.sleep(chance.fraction() * 0.1)
        if chance.below(4) == 0:
            await self._try(tp, batch, values)
        self._sent[tp] = first + len(values)

    async def _try(self, tp: TopicPartition, batch: bytes, values: list[bytes]) -> bool:
        from sim.world import Unreachable

        try:
            # Often too short to be answered, so that the next attempt finds the first still waiting.
            timeout_s = 0.005 + self._chance.fraction() ** 2 * 2
            await self._workload.send(tp, batch, values, ACKS_ALL, timeout_s)
            return True
        except (RequestError, Unreachable):
            return False


class Group:
    def __init__(self, workload: Workload, name: str) -> None:
        self._workload, self._world = workload, workload.world
        self._name = name
        self._chance = chance_for(self._world.seed, name)
        self._tp = TopicPartition("one", 0)

    async def run(self) -> None:
        while not self._workload.is_over:
            commits = self._chance.below(3) and not self._world.is_reading_only
            await (self._commit() if commits else self.look())
            await self._world.clock.sleep(self._chance.fraction() * 0.3)
        while not await self.look():
            await self._world.clock.sleep(0.1)

    async def _commit(self) -> bool:
        offsets = self._world.checkers.offsets
        acknowledged, tried = offsets.get(self._name, (-1, -1))
        offsets[self._name] = acknowledged, tried + 1
        wanted = [OffsetToCommit(self._tp, tried + 1)]
        _, reply = await self._ask(lambda groups: groups.commit(self._name, -1, "", None, wanted))
        if reply is None or reply.errors != (None,):
            return False
        offsets[self._name] = tried + 1, tried + 1
        return True

    async def look(self) -> bool:
        world, (acknowledged, _) = self._world, self._world.checkers.offsets.get(self._name, (-1, -1))
        asked, reply = await self._ask(lambda groups: groups.fetch(self._name, [self._tp]))
        if reply is None:
            return False
        if not world.machines[asked].is_misled:
            world.checkers.on_offset_read(self._name, acknowledged, reply.offsets[0].offset)
        return True

    async def _ask(self, question: Any) -> tuple[int, Any]:
        """The coordinator's id and answer, None if there is none in time."""
        from sim.world import Unreachable

        world, serving = self._world, self._world.serving
        timeout_s = 0.3 + self._chance.fraction() ** 2 * 6
        asked = serving[self._chance.below(len(serving))] if serving else None
        try:
            found = await world.call(
                asked, lambda: _done(asked, lambda g: g.find_coordinator(self._name)), timeout_s
            )
            process = world.machines[found.id].process
            return found.id, await world.call(process, lambda: _done(process, question), timeout_s)
        except (RequestError, Unreachable) as error:
            world.note(f"{self._name}: {error!r}"[:120])
            return NO_BROKER, None


class Trimmer:
    def __init__(self, workload: Workload) -> None:
        self._workload, self._world = workload, workload.world
        self._chance = chance_for(self._world.seed, "trimmer")

    async def run(self) -> None:
        from sim.workload import PARTITIONS

        chance = self._chance
        while not self._workload.is_over:
            await self._world.clock.sleep(0.1 + chance.fraction())
            await self._trim(PARTITIONS[chance.below(len(PARTITIONS))])

    async def _trim(self, tp: TopicPartition) -> None:
        from sim.world import Unreachable

        world, process = self._world, self._workload.leader(tp)
        some = self._chance.fraction()

        async def work() -> int:
            assert process is not None
            partition, records = process.broker._host.find(tp), process.broker.services.records
            start, mark = partition.log.start_offset, partition.high_watermark
            # A third of them all that is committed, else some of it, often in the midst of a batch.
            offset = mark if some < 0.3 else start + int((mark - start) * some)
            world.checkers.on_deleting(spot_of(partition), offset)
            reply = records.delete_records(tp, -1 if some < 0.3 else offset, 2.0)
            low_watermark = await reply if isinstance(reply, Awaitable) else reply
            world.checkers.on_deleted(partition, low_watermark)
            return low_watermark

        with suppress(RequestError, Unreachable):
            world.note(f"{tp} begins at {await world.call(process, work, 2.0)}")


async def _done(process: Process | None, question: Any) -> Any:
    """In the broker's place."""
    assert process is not None
    reply = question(process.broker.services.groups)
    return await reply if isinstance(reply, Awaitable) else reply
