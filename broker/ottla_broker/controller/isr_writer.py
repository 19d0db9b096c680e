"""Leaders' changes of in-sync sets: compare-and-set in the store until the outcome is known. [S]

Each broker has one; the leaders on it call `propose`. A follower that dies concerns all its leaders at once,
so what is proposed within one turn of the loop travels together, as branches that win or lose on their own.

* W1 (rules 1 and 5): a branch compares the partition's mod revision, and of everybody it adds `members/<id>` and the
  registration, with all that was announced in it. Else one that has come back torn could be added between the
  controller's look at the partition, which did not count on it then, and its admission; or one that has announced its
  copy as damaged, after it has cut it.
* W2 (rule 6): a reply that was lost is no outcome. The same compare-and-set is sent again: of all attempts
  at most one can win, and when one has lost, the key shows what holds.
* W3 (rule 8): who is not admitted, about to stop, or has lost the partition's log directory, is not added.

* W4: whatever a leader writes proves that it was there after the controller's last word, so whom that dropped is
  forgotten (decision 9).

It must never decide who is in sync, nor propose anything else than what it was asked to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from ottla_broker.controller import keys
from ottla_broker.controller.image import ClusterImage, PartitionImage
from ottla_broker.controller.metadata import Metadata
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

#: Transactions under way at once; what comes meanwhile waits, and travels together.
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
        """The state that holds now: with the new ISR, or another's if that was faster, or `expected` if refused.

        None: the partition is gone, and only the image will tell. Takes as long as the store is away; cancel
        it when the leadership ends.
        """
        image = self._metadata.image
        added = [r for r in isr if r not in expected.isr]
        if self._metadata.refusal is not None or not _may_be_added(image, added, topic_id, partition):
            return expected  # Nothing was sent: rule 18, or W3.
        key = keys.partition(topic_id, partition)
        guard: list[Compare] = [ModRevisionIs(key, expected.revision)]
        for r in added:
            guard.append(ModRevisionIs(keys.member(r), image.members[r].revision))
            guard.append(ModRevisionIs(keys.broker(r), image.brokers[r].told_at))
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
        """Give up what is under way; its outcome stays unknown."""
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
        # One turn of the loop: all leaders that were told the same news have proposed by then.
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
        """As many as fit. One that adds many brokers has too many compares for a branch: it goes alone."""
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
        """Until the outcome of each is known, or nobody wants to know it any more (W2)."""
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
        puts = [Put(p.key, keys.encode_partition(p.wanted)) for p in batch]
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
        """What holds: our own write if its reply was lost, or what was there first."""
        entry = await self._store.get(proposal.key)
        try:
            _answer(proposal, None if entry is None else keys.decode_partition(entry))
        except keys.BadValue as error:
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
