"""Transactional clients of a world: producers, processes that end prepared transactions, readers of what is committed.

Each transactional id has a life at a time, and at random a new life begins while the old one goes on: a zombie, which
finds itself fenced sooner or later. A life makes transactions over several partitions and, if it consumes, commits the
offsets of its inputs in them: input n becomes one record that names n. It commits, aborts, or walks away.

Three kinds: `v1` adds partitions itself and keeps its epoch; with `v2` leaders add partitions and each end begins the
next epoch; `prepared` transactions are ended by another process that knows their names. What a client may conclude
from an answer, and from none, is in `Life`; what must hold is in `txn_ledger.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla_broker.event_loop import in_turns
from ottla_broker.group.messages import OffsetToCommit
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.requests import Appended, Fetched, ProducerIdentity, Write
from ottla_broker.steps import Steps
from ottla_broker.txn.messages import KeptTransaction
from ottla_core.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    OffsetOutOfRange,
    ProducerFenced,
    RequestError,
)
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import complete_batches
from sim.batches import Rec, is_abort, make_batch, read_batches
from sim.checkers import spot_of
from sim.loop import chance_for
from sim.spots import Spot
from sim.txn_ledger import Txn

if TYPE_CHECKING:
    from sim.workload import Workload
    from sim.world import Process

KINDS = ("v1", "v2", "prepared")
#: A decided transaction has to be ended; this is far above what the faults and the time-outs of brokers take together.
_END_S_MAX = 60.0
#: How long a life tries one step before it gives the transaction up.
_STEP_S = 4.0
_FENCED = (ProducerFenced, InvalidProducerEpoch)


class Over(Exception):
    """This life is fenced, or does not know what became of its transaction."""


class Spoiled(Exception):
    """The transaction cannot be committed any more."""


def transactional_clients(workload: Workload) -> Iterator[Coroutine[Any, Any, None]]:
    from sim.workload import PARTITIONS

    kinds, partitions = list(enumerate(KINDS)), PARTITIONS
    if workload.world.shape.has_groups:
        # Groups read as well: less will do.
        kinds, partitions = [kinds[workload.world.seed % len(kinds)]], PARTITIONS[1:2]
    for number, kind in kinds:
        yield TransactionalId(workload, number, kind).run()
    for tp in partitions:
        yield CommittedReader(workload, tp).run()


class TransactionalId:
    """Lives of one transactional id, and the questions that all of them ask."""

    def __init__(self, workload: Workload, number: int, kind: str) -> None:
        self.workload, self.world = workload, workload.world
        self.kind, self.name = kind, f"tx-{number}"
        self.number = number
        self.group = f"tx-group-{number}"
        self.consumes = kind != "prepared"
        self.input = TopicPartition("one", 0)
        self.ledger = self.world.checkers.transactions
        self.chance = chance_for(self.world.seed, self.name)
        self._lives = 0
        self._enders: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        running: list[asyncio.Task[None]] = []
        while not self.workload.is_over:
            identity = await self.init(None)
            if identity is None:
                await self.world.clock.sleep(0.1 + self.chance.fraction() * 0.2)
                continue
            self._lives += 1
            task = self.world.loop.spawn(None, Life(self, self._lives, identity).run())
            running = [each for each in running if not each.done()] + [task]
            await asyncio.wait([task], timeout=1.0 + self.chance.fraction() * 6)
        for task in (*running, *self._enders):
            await task
        if self.consumes:
            await self._last_words()

    async def _last_words(self) -> None:
        """The offsets that are committed when all is over."""
        deadline = self.world.clock.monotonic() + _END_S_MAX
        while (position := await self.committed_offset()) is None:
            if self.world.clock.monotonic() > deadline:
                self.world.checkers.fail(f"I17 {self.group}: committed offsets stay unstable")
                return
            await self.world.clock.sleep(0.1)
        self.ledger.positions[self.number] = position

    async def init(self, current: ProducerIdentity | None) -> ProducerIdentity | None:
        """A new epoch, which fences all before. None if it is refused for now."""
        timeout_ms = 2000 + self.chance.below(3000)
        keeps = self.kind == "prepared"
        try:
            made = await self.ask(
                lambda t: t.init_or_keep(self.name, timeout_ms, current, keep_prepared=keeps)
            )
        except Unreached:
            return None
        except RequestError as error:
            if isinstance(error, _FENCED) and current is not None:
                raise Over from None
            return None
        if isinstance(made, KeptTransaction):
            return None  # Still open: somebody is about to end it.
        self.ledger.on_initialized(made)
        return made  # type: ignore[no-any-return]

    async def ask(self, question: Callable[[Any], Any], timeout_s: float = 0.0) -> Any:
        """The coordinator's answer. `Unreached` if there is none in time."""
        return await self._ask_at(
            lambda services: services.transactions.find_coordinator(self.name),
            lambda services: question(services.transactions),
            timeout_s,
        )

    async def ask_group(self, question: Callable[[Any], Any], timeout_s: float = 0.0) -> Any:
        return await self._ask_at(
            lambda services: services.groups.find_coordinator(self.group), question, timeout_s
        )

    async def _ask_at(self, find: Any, question: Any, timeout_s: float) -> Any:
        from sim.world import Unreachable

        world, serving = self.world, self.world.serving
        timeout_s = timeout_s or 0.3 + self.chance.fraction() ** 2 * 4
        asked = serving[self.chance.below(len(serving))] if serving else None
        try:
            found = await world.call(asked, lambda: settled(asked, find), timeout_s)
            process = world.machines[found.id].process
            return await world.call(process, lambda: settled(process, question), timeout_s)
        except Unreachable as error:
            raise Unreached(str(error)) from None
        except RequestError as error:
            world.note(f"{self.name}: {error!r}"[:120])
            if isinstance(error, InvalidProducerIdMapping) and not self._may_be_misled():
                world.checkers.fail(f"I18 {self.name}: its coordinator has forgotten it: {error}")
            raise

    def _may_be_misled(self) -> bool:
        """Whether some broker may answer from a leadership that it has lost."""
        if self.workload.is_over:
            return False
        return any(machine.is_misled for machine in self.world.machines.values())

    async def committed_offset(self) -> int | None:
        """Where the next input begins; None if nobody says so for certain."""
        if self._may_be_misled():
            return None
        try:
            reply = await self.ask_group(
                lambda s: s.groups.fetch(self.group, [self.input], require_stable=True)
            )
        except (Unreached, RequestError):
            return None
        (found,) = reply.offsets
        return None if found.error is not None or self._may_be_misled() else max(found.offset, 0)

    def end_by_name(self, txn: Txn, producer: ProducerIdentity) -> None:
        """Another process takes over a prepared transaction."""
        self._enders.append(self.world.loop.spawn(None, self._end_by_name(txn, producer)))

    async def _end_by_name(self, txn: Txn, producer: ProducerIdentity) -> None:
        clock, commits = self.world.clock, self.chance.below(4) > 0
        await clock.sleep(self.chance.fraction() ** 2 * 4)
        deadline, unanswered = clock.monotonic() + _END_S_MAX, 0
        self.ledger.on_ending(txn, commits)
        while clock.monotonic() < deadline:
            try:
                await self.ask(lambda t: t.end(self.name, producer, commits=commits, v2=True))
            except Unreached:
                unanswered += 1
            except RequestError as error:
                if isinstance(error, ProducerFenced) and unanswered:
                    # An earlier attempt was carried out, and the next life has begun since.
                    self.ledger.on_ended(txn, commits)
                    return
                unanswered += 1  # Some refusals come after the change was written.
                if not error.retriable:
                    self.world.checkers.fail(f"I15 {txn.name}: prepared, and its end is refused: {error!r}")
                    return
            else:
                self.ledger.on_ended(txn, commits)
                return
            await clock.sleep(0.05 + self.chance.fraction() * 0.2)
        self.world.checkers.fail(f"I17 {txn.name}: prepared, and cannot be ended in {_END_S_MAX:g} s")


class Unreached(Exception):
    """No answer: the request may have been carried out."""


class Life:
    """One producer: from an InitProducerId until it is fenced, walks away, or the world is over."""

    def __init__(self, owner: TransactionalId, number: int, identity: ProducerIdentity) -> None:
        self._owner, self._world, self._chance = owner, owner.world, owner.chance
        self._number, self._identity = number, identity
        self._ledger = owner.ledger
        self._sequences: dict[TopicPartition, int] = {}
        #: A batch was not acknowledged, so its sequence may be taken or not.
        self._is_uncertain = False
        self._transactions = 0
        #: The next input, as far as this life knows.
        self._position: int | None = None

    async def run(self) -> None:
        try:
            while not self._owner.workload.is_over:
                if self._owner.consumes and self._position is None:
                    await self._locate()
                elif not await self._transaction():
                    return
                await self._world.clock.sleep(self._chance.fraction() * 0.25)
        except Over:
            self._world.note(f"life {self._number} of {self._owner.name} is over")

    async def _locate(self) -> None:
        self._position = await self._owner.committed_offset()

    async def _transaction(self) -> bool:
        """Whether this life goes on."""
        from sim.workload import PARTITIONS

        chance, owner = self._chance, self._owner
        self._transactions += 1
        txn = self._ledger.begin(f"t{owner.number}.{self._number}.{self._transactions}")
        rest = [*PARTITIONS, *owner.workload.late_partitions]
        tps = [rest.pop(chance.below(len(rest))) for _ in range(1 + chance.below(len(rest)))]
        inputs = self._position or 0
        try:
            if owner.kind == "v1":
                await self._step(self._add(tps))
            for number in range(len(tps) + chance.below(2)):
                await self._write(txn, tps[number % len(tps)], self._values(txn, inputs + number))
                await self._world.clock.sleep(chance.fraction() ** 3 * 0.3)
            if owner.consumes:
                inputs += number + 1
                await self._commit_offsets([OffsetToCommit(owner.input, inputs)])
        except Spoiled:
            return await self._end(txn, commits=False)
        if chance.below(12) == 0:
            return False  # The coordinator or the next life aborts it.
        if owner.kind == "prepared":
            return await self._prepare(txn)
        commits = chance.below(4) > 0
        goes_on = await self._end(txn, commits=commits)
        self._position = inputs if commits else self._position
        return goes_on

    async def _step(self, work: Callable[[], Awaitable[Any]], *, limit_s: float = _STEP_S) -> Any:
        """Try until it is done; `Spoiled` if that is refused or takes too long."""
        deadline = self._world.clock.monotonic() + limit_s
        while True:
            try:
                return await work()
            except Unreached:
                pass
            except RequestError as error:
                if isinstance(error, _FENCED):
                    raise Over from None
                if not error.retriable:
                    raise Spoiled from error
            if self._world.clock.monotonic() > deadline:
                raise Spoiled
            await self._world.clock.sleep(0.02 + self._chance.fraction() * 0.1)

    # ------------------------------------------------------------------ records and offsets

    def _add(self, tps: list[TopicPartition]) -> Callable[[], Awaitable[None]]:
        async def add() -> None:
            errors = await self._owner.ask(
                lambda t: t.partitions_here(self._owner.name, self._identity, tps, adds=True)
            )
            for error in errors:
                if error is not None:
                    raise error

        return add

    def _values(self, txn: Txn, first_input: int) -> list[bytes]:
        values = [f"{txn.name}:{first_input}".encode()]
        if not self._owner.consumes:
            values += [f"{txn.name}:{first_input}+{n}".encode() for n in range(self._chance.below(3))]
        return values

    async def _write(self, txn: Txn, tp: TopicPartition, values: list[bytes]) -> None:
        """One batch, sent again as it is until it is acknowledged."""
        sequence = self._sequences.get(tp, 0)
        batch = make_batch(
            [Rec(None, value, self._world.clock.wall_ms()) for value in values],
            producer_id=self._identity.producer_id,
            epoch=self._identity.producer_epoch,
            sequence=sequence,
            transactional=True,
        )
        self._is_uncertain = True
        if self._is_impatient():
            self._world.loop.spawn(
                None, _whatever_becomes_of(lambda: self._send(txn, tp, batch, values, 3.0))
            )
            await self._world.clock.sleep(self._chance.fraction() ** 2 * 0.02)
            raise Spoiled
        spot, appended = await self._step(lambda: self._send(txn, tp, batch, values))
        self._is_uncertain = False
        self._sequences[tp] = sequence + len(values)
        for number, value in enumerate(values):
            self._world.checkers.on_acknowledged(spot, appended.base_offset + number, value)
            self._ledger.on_acknowledged(txn, spot, appended.base_offset + number, value)

    async def _send(
        self, txn: Txn, tp: TopicPartition, batch: bytes, values: list[bytes], timeout_s: float = 0.0
    ) -> tuple[Spot, Appended]:
        from sim.world import Unreachable

        world, owner = self._world, self._owner
        process = owner.workload.leader(tp)
        timeout_s = timeout_s or 0.05 + self._chance.fraction() ** 2 * 3

        async def work() -> tuple[Spot, Appended]:
            assert process is not None
            services, spot = process.broker.services, spot_of(process.broker._host.find(tp))
            world.checkers.on_sent(spot, values)
            self._ledger.on_sent(txn, values)
            found = await in_turns(
                services.producing.produce_in_steps(
                    [Write(tp, batch)],
                    acks=ACKS_ALL,
                    timeout_s=timeout_s,
                    transactional_id=owner.name,
                    adds_partitions=owner.kind != "v1",
                )
            )
            (outcome,) = found if isinstance(found, list) else await found
            if isinstance(outcome, Exception):
                raise outcome
            return spot, outcome

        try:
            sent = await world.call(process, work, timeout_s)
        except Unreachable as error:
            raise Unreached(str(error)) from None
        except RequestError as error:
            world.note(f"write {values[0]!r} to {tp}: {error!r}"[:150])
            raise
        world.note(f"write {values[0]!r} to {tp}: at {sent[1].base_offset} by {process and process.place}")
        return sent

    async def _commit_offsets(
        self,
        wanted: list[OffsetToCommit],
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
    ) -> None:
        owner, identity = self._owner, self._identity
        if owner.kind == "v1":
            await self._step(lambda: owner.ask(lambda t: t.add_offsets(owner.name, identity, owner.group)))

        async def commit() -> None:
            reply = await owner.ask_group(
                lambda services: _commit_in_turns(
                    services.transactions.commit_offsets(
                        owner.name,
                        identity,
                        owner.group,
                        generation,
                        member_id,
                        instance_id,
                        wanted,
                        adds=owner.kind != "v1",
                    )
                )
            )
            for error in reply.errors:
                if error is not None:
                    raise error

        if self._is_impatient():
            self._world.loop.spawn(None, _whatever_becomes_of(commit))
            await self._world.clock.sleep(self._chance.fraction() ** 2 * 0.02)
            raise Spoiled
        await self._step(commit)

    def _is_impatient(self) -> bool:
        """The transaction is aborted while a request of it is under way."""
        return self._chance.below(10) == 0

    # ------------------------------------------------------------------ the end

    async def _prepare(self, txn: Txn) -> bool:
        owner, identity = self._owner, self._identity
        try:
            await self._step(lambda: owner.ask(lambda t: t.prepare(owner.name, identity)))
        except Spoiled:
            return await self._end(txn, commits=False)
        owner.end_by_name(txn, identity)
        return False

    async def _end(self, txn: Txn, *, commits: bool) -> bool:
        owner, identity, v2 = self._owner, self._identity, self._owner.kind != "v1"
        self._ledger.on_ending(txn, commits)
        try:
            following = await self._step(
                lambda: owner.ask(lambda t: t.end(owner.name, identity, commits=commits, v2=v2)), limit_s=15.0
            )
        except Spoiled:
            return False  # Committed or not: the log will show.
        self._ledger.on_ended(txn, commits)
        self._world.note(f"{txn.name} {'committed' if commits else 'aborted'}")
        if not v2 and self._is_uncertain:
            # As clients do (KIP-360): no sequence of the old epoch is used again.
            found = await owner.init(identity)
            if found is None:
                return False
            following = found
        if following != identity:
            self._identity, self._sequences = following, {}
        self._is_uncertain = False
        return True


class CommittedReader:
    """Reads what is committed (`read_committed`), from leaders and followers, and remembers all of it."""

    def __init__(self, workload: Workload, tp: TopicPartition) -> None:
        self._workload, self._world, self._tp = workload, workload.world, tp
        self._chance = chance_for(self._world.seed, f"committed {tp}")

    async def run(self) -> None:
        from sim.world import Unreachable

        checkers, position = self._world.checkers, 0
        while not self._workload.is_over:
            from_any = self._chance.below(2) == 1
            try:
                spot, got = await self._workload.fetched(
                    self._tp, position, 0.5, from_any=from_any, read_committed=True
                )
            except OffsetOutOfRange as error:
                if from_any:
                    continue
                # Records may be deleted before the first answer says which partition this is.
                trimmed = max((o for of, o in checkers.trimmed.items() if of.tp == self._tp), default=0)
                if position >= trimmed:
                    checkers.fail(f"I8 {self._tp}: a reader of what is committed at {position} got {error}")
                    return
                position = trimmed
                continue
            except (RequestError, Unreachable):
                await self._world.clock.sleep(0.1)
                continue
            found, after = committed_in(got, position)
            if after > max(got.last_stable_offset, position):
                checkers.fail(f"I16 {spot}: read up to {after}, above {got.last_stable_offset}")
            for offset, value in found.items():
                checkers.transactions.on_committed_read(spot, offset, value)
            checkers.transactions.on_position(spot, after)
            position = after
            await self._world.clock.sleep(0.08)


def all_in(got: Fetched, position: int) -> tuple[dict[int, bytes], int]:
    """The records of a response, whatever became of their transactions; and where to go on."""
    return committed_in(got._replace(aborted=()), position)


def committed_in(got: Fetched, position: int) -> tuple[dict[int, bytes], int]:
    """What a `read_committed` consumer makes of a response, as clients do it; and where it goes on."""
    coming = sorted((each.first_offset, each.producer_id) for each in got.aborted)
    aborting: set[int] = set()
    found: dict[int, bytes] = {}
    for at, header in complete_batches(got.records):
        while coming and coming[0][0] < header.next_offset:
            aborting.add(coming.pop(0)[1])
        batch = got.records[at : at + header.size]
        if header.is_control:
            if is_abort(batch):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            found.update(
                (offset, record.value or b"") for offset, record in read_batches(batch) if offset >= position
            )
        position = max(position, header.next_offset)
    return found, position


async def _commit_in_turns(steps: Steps[Any]) -> Any:
    reply = await in_turns(steps)
    return await reply if isinstance(reply, Awaitable) else reply


async def _whatever_becomes_of(work: Callable[[], Awaitable[Any]]) -> None:
    with suppress(Unreached, RequestError):
        await work()


async def settled(process: Process | None, question: Callable[[Any], Any]) -> Any:
    """In the broker's place."""
    assert process is not None
    reply = question(process.broker.services)
    return await reply if isinstance(reply, Awaitable) else reply
