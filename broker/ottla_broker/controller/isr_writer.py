"""Writes leaders' changes of in-sync sets: compare-and-set in the store until the outcome is known. [S]

Each broker has one; its leaders call `propose`. A follower that dies affects all its leaders at once,
so the proposals of one turn of the loop share a transaction, as branches that succeed or fail independently.

* W1 (rules 1 and 5): a branch compares the partition's mod revision, and of each broker it adds `members/<id>` and the
  registration, with all its announcements. Else a broker that has come back torn could be added between the
  controller's check of the partition, when it was not in the ISR, and its admission; or one that has announced its
  replica as damaged, after it has truncated it.
* W2 (rule 6): a lost reply leaves the outcome unknown. The same compare-and-set is sent again: of all attempts
  at most one can succeed, and when one has failed, the key shows the current state.
* W3 (rule 8): a broker that is not admitted, about to stop, or has lost the partition's log directory, is not added.

* W4: a leader's write proves that it was alive after the controller's last change, so the replicas dropped by that are
  forgotten (decision 9).

It must never decide which replicas are in sync, nor change a proposal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from ottla_broker.metadata.image import ClusterImage, PartitionImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_broker.metadata.values import BadValue
from ottla_broker.metadata.watcher import Metadata
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import (
    BRANCH_OPS_MAX,
    BRANCHES_MAX,
    Branch,
    Compare,
    MetadataStore,
    ModRevisionIs,
    Put,
    StoreError,
)

_log = structlog.get_logger("ottla.isr")

#: Concurrent transactions; later proposals wait, and share the next one.
_IN_FLIGHT_MAX = 4
_PAUSE_FIRST_S = 0.05
_PAUSE_LAST_S = 2.0


@dataclass(slots=True)
class _Proposal:
    key: str
    wanted: PartitionImage
    guard: tuple[Compare, ...]
    outcome: asyncio.Future[PartitionImage | None]


class IsrWriter:
    def __init__(self, store: MetadataStore, clock: Clock, metadata: Metadata) -> None:
        self._store = store
        self._clock = clock
        self._metadata = metadata
        self._waiting: list[_Proposal] = []
        self._workers: set[asyncio.Task[None]] = set()

    async def propose(
        self,
        topic_id: UUID,
        partition: int,
        *,
        expected: PartitionImage,
        isr: tuple[int, ...],
        elr: tuple[int, ...] = (),
    ) -> PartitionImage | None:
        """The current state: with the new ISR, or another writer's state if that was faster, or `expected` if refused.

        None: the partition was deleted, and only the image will show it. Waits while the store is unavailable; cancel
        it when the leadership ends.
        """
        image = self._metadata.image
        added = [r for r in isr if r not in expected.isr]
        if self._metadata.refusal is not None or not _may_be_added(image, added, topic_id, partition):
            return expected  # Nothing was sent: rule 18, or W3.
        key = partition_key(topic_id, partition)
        guard: list[Compare] = [ModRevisionIs(key, expected.revision)]
        for r in added:
            guard.append(ModRevisionIs(MEMBERS.key(r), image.members[r].revision))
            guard.append(ModRevisionIs(BROKERS.key(r), image.brokers[r].mod_revision))
        outcome = asyncio.get_running_loop().create_future()
        wanted = replace(expected, isr=isr, elr=elr, dropped=())
        self._waiting.append(_Proposal(key, wanted, tuple(guard), outcome))
        if len(self._workers) < _IN_FLIGHT_MAX:
            worker = asyncio.ensure_future(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._on_worker_ended)
        result: PartitionImage | None = await outcome
        return result

    async def close(self) -> None:
        """Cancel pending proposals; their outcome stays unknown."""
        for worker in tuple(self._workers):
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for proposal in self._waiting:
            proposal.outcome.cancel()
        self._waiting.clear()

    def _on_worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            _log.error("in-sync sets not written", error=repr(error))

    async def _work(self) -> None:
        # One turn of the loop: all leaders that saw the same change have proposed by then.
        await self._clock.sleep(0)
        while self._waiting:
            batch = self._next_batch()
            try:
                await self._settle(batch)
            finally:
                for proposal in batch:
                    if not proposal.outcome.done():
                        proposal.outcome.cancel()

    def _next_batch(self) -> list[_Proposal]:
        """As many as fit. A proposal that adds many brokers has too many compares for a branch: it is sent alone."""
        self._waiting = [p for p in self._waiting if not p.outcome.done()]
        batch: list[_Proposal] = []
        taken: set[str] = set()
        for proposal in self._waiting:
            wide = len(proposal.guard) > BRANCH_OPS_MAX
            if proposal.key in taken or (wide and batch):
                continue
            batch.append(proposal)
            taken.add(proposal.key)
            if wide or len(batch) == BRANCHES_MAX:
                break
        self._waiting = [p for p in self._waiting if p not in batch]
        return batch

    async def _settle(self, batch: list[_Proposal]) -> None:
        """Retry until the outcome of each is known, or its waiter was cancelled (W2)."""
        pause_s = _PAUSE_FIRST_S
        while batch:
            try:
                await self._attempt(batch)
            except StoreError as error:
                _log.warning("outcome of an in-sync set is unknown; retrying", reason=str(error))
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_LAST_S)
            batch = [p for p in batch if not p.outcome.done()]

    async def _attempt(self, batch: Sequence[_Proposal]) -> None:
        if not batch:
            return
        puts = [Put(p.key, PARTITIONS.encode(p.wanted)) for p in batch]
        if len(batch) == 1:
            sent = await self._store.transact(batch[0].guard, [Branch((), (puts[0],))])
            taken: Sequence[bool] = (sent.all_taken,)
        else:
            branches = [Branch(p.guard, (put,)) for p, put in zip(batch, puts, strict=True)]
            sent = await self._store.transact((), branches)
            taken = sent.taken
        for proposal, yes in zip(batch, taken, strict=True):
            if yes:
                _answer(proposal, replace(proposal.wanted, revision=sent.revision))
            else:
                await self._read_back(proposal)

    async def _read_back(self, proposal: _Proposal) -> None:
        """Read the current state: this broker's write if its reply was lost, or the earlier one."""
        entry = await self._store.get(proposal.key)
        try:
            _answer(proposal, None if entry is None else PARTITIONS.decode(entry))
        except BadValue as error:
            _log.error("partition state not readable", reason=str(error))
            _answer(proposal, None)


def _answer(proposal: _Proposal, state: PartitionImage | None) -> None:
    if not proposal.outcome.done():
        proposal.outcome.set_result(state)


def _may_be_added(image: ClusterImage, added: Sequence[int], topic_id: UUID, partition: int) -> bool:
    """W3."""
    return all(
        image.is_admitted(r)
        and not image.brokers[r].stopping
        and not image.brokers[r].has_lost(topic_id, partition)
        for r in added
    )
