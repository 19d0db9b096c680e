"""Workers: members of a group that consume, transform and produce, exactly once over rebalances.

A worker reads what is committed in two topics and writes one record into the other for each, which names its input; its
own kind's records it passes by. Outputs and offsets are one transaction, and the offsets are committed as a member:
so a worker whose partitions have gone to another cannot commit its transaction's share of them (KIP-447).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ottla_broker.group.messages import OffsetToCommit
from ottla_broker.requests import ProducerIdentity
from ottla_client.group_effects import Identity
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.chance import Chance
from sim.group_ledger import Commit, is_output
from sim.loop import chance_for
from sim.members import Member, MemberGroup
from sim.spots import Spot
from sim.transactional import Life, Over, Spoiled, TransactionalId, all_in, committed_in
from sim.txn_ledger import Txn
from sim.world import Unreachable

if TYPE_CHECKING:
    from sim.workload import Workload

_TOPICS = ("one", "two")
_AROUND = 20


class WorkerGroup(MemberGroup):
    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, "workers", _TOPICS)
        self.reads_committed = True
        self.ledger.reads_committed.add(self.name)
        self.ledger.workers.add(self.name)

    def member(self, name: str, instance: str, chance: Chance) -> Member:
        return Worker(self, name, instance, chance)


class _WorkerId(TransactionalId):
    """The transactional id of a worker: its own, or that of another life of its seat, which it fences."""

    def __init__(self, worker: Worker, chance: Chance) -> None:
        super().__init__(worker.group.workload, 0, ("v1", "v2")[chance.below(2)])
        seat, _, life = worker.name.rpartition(".")
        self.name = f"{seat}-{int(life) % 2}"
        self.group = worker.group.name
        self.chance = chance


class Worker(Member):
    def __init__(self, group: MemberGroup, name: str, instance: str, chance: Chance) -> None:
        super().__init__(group, name, instance, chance)
        self._owner = _WorkerId(self, chance_for(self.world.seed, f"{name} produces"))
        self._producer: _Transforming | None = None
        #: Records without an output yet, and what is committed of each partition.
        self._inputs: list[tuple[TopicPartition, int, bytes]] = []
        self._done: dict[TopicPartition, int] = {}

    def _on_records(self, spot: Spot, tp: TopicPartition, found: dict[int, bytes]) -> None:
        super()._on_records(spot, tp, found)
        self._inputs += [(tp, offset, value) for offset, value in found.items()]

    def _release(self, tps: list[TopicPartition]) -> None:
        super()._release(tps)
        self._inputs = [each for each in self._inputs if each[0] not in tps]
        for tp in tps:
            self._done.pop(tp, None)

    async def _after_poll(self) -> None:
        await self._commit_all()

    async def _commit_all(self) -> bool:
        """Turn all that was polled into outputs, and commit both. Otherwise begin again at what is committed."""
        due = {tp: at for tp, at in self.positions.items() if tp in self.holds and self._done.get(tp) != at}
        if not due:
            return True
        if self._producer is None:
            made = await self._owner.init(None)
            if made is None:
                return False
            self._producer = _Transforming(self, self._owner, made)
        identity, inputs = self.identity, self._inputs
        if identity.generation < 0:
            return False
        commits = {
            tp: self.group.ledger.on_committing(self.group.name, tp, self.holds[tp], at)
            for tp, at in due.items()
        }
        txn = await self._producer.transform(inputs, commits, identity)
        if txn is None or not txn.wants_commit:
            for commit in commits.values():
                commit.is_refused = True
        if txn is None or txn.is_committed is None:
            self._producer = None
        if txn is not None and txn.is_committed:
            for tp, commit in commits.items():
                self.group.ledger.on_committed(self.group.name, tp, commit)
            self._inputs, self._done = [], {**self._done, **due}
            return True
        self._inputs, self.positions, self._done = [], {}, {}
        return False


class _Transforming(Life):
    """One life of the worker's producer."""

    #: What it looks at within a transaction.
    isolation_is_committed = True

    def __init__(self, worker: Worker, owner: _WorkerId, identity: ProducerIdentity) -> None:
        super().__init__(owner, 0, identity)
        self._worker = worker

    async def transform(
        self,
        inputs: list[tuple[TopicPartition, int, bytes]],
        commits: dict[TopicPartition, Commit],
        identity: Identity,
    ) -> Txn | None:
        """The transaction, and in it what became of it; None if this life is over before its end was requested."""
        owner, worker, chance = self._owner, self._worker, self._chance
        self._transactions += 1
        txn = self._ledger.begin(f"w-{worker.name}.{self._transactions}.{self._identity.producer_epoch}")
        outputs: dict[TopicPartition, list[bytes]] = {}
        for tp, offset, value in inputs:
            self._ledger.on_transaction_read(txn, value)
            if not is_output(value):
                target = TopicPartition(_TOPICS[1 - _TOPICS.index(tp.topic)], 0)
                outputs.setdefault(target, []).append(f"{txn.name}:{tp}@{offset}".encode())
        wanted = [OffsetToCommit(tp, each.offset, metadata=each.name) for tp, each in commits.items()]
        try:
            if owner.kind == "v1" and outputs:
                await self._step(self._add(list(outputs)))
            for tp, values in outputs.items():
                await self._write(txn, tp, values)
                await self._world.clock.sleep(chance.fraction() ** 3)
            await self._look_around(txn)
            if chance.below(2) and worker.identity.generation >= 0:
                identity = worker.identity  # As it is now, or as it was when the partitions were read.
            # Time enough for its partitions to go to another, before or after.
            pause_s, is_before = chance.fraction() ** 3 * 3, chance.below(2) == 0
            await self._world.clock.sleep(pause_s * is_before)
            await self._commit_offsets(
                wanted, identity.generation, identity.member_id, worker.instance or None
            )
            await self._world.clock.sleep(pause_s * (not is_before))
        except Spoiled:
            return txn if await self._ended(txn, commits=False) else None
        except Over:
            return None
        if chance.below(20) == 0:
            return None  # It walks away.
        await self._ended(txn, commits=chance.below(8) > 0)
        return txn

    async def _look_around(self, txn: Txn) -> None:
        """Read what others have written around the transaction's own records, while it is open (I23)."""
        for spot, offset in list(txn.acknowledged.values()):
            start = max(0, offset - _AROUND)
            committed = self.isolation_is_committed
            with suppress(RequestError, Unreachable):
                _, got = await self._worker.group.workload.fetched(
                    spot.tp, start, 0.0, read_committed=committed
                )
                found, _ = (committed_in if committed else all_in)(got, start)
                for value in found.values():
                    self._ledger.on_transaction_read(txn, value)

    async def _ended(self, txn: Txn, *, commits: bool) -> bool:
        try:
            return await self._end(txn, commits=commits)
        except Over:
            return False
