"""The metadata store's twin in memory: etcd's semantics, with faults on demand.

`SimEtcd` is the server: revisions, history, leases on an injected clock. `SimStore` is one client's view of
it and implements the `MetadataStore` port; each broker of a simulated cluster has its own, so that one can
be cut off alone.

Faults. `before` and `after` are called with the name of each operation, and may wait on the clock or raise
`StoreError`: `before` loses the request, `after` the reply of a write that did happen. `silent` stops the
watches' signs of life; `break_watches` ends them; `SimEtcd.compact` drops history; `SimEtcd.restore` goes
back to an older state, as a backup does.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ottla_core.errors import invariant
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import (
    BRANCH_OPS_MAX,
    BRANCHES_MAX,
    Branch,
    Changed,
    Compare,
    Delete,
    Entry,
    HistoryCompacted,
    LeaseExpired,
    ModRevisionIs,
    Outcome,
    Put,
    Removed,
    Revision,
    Snapshot,
    StoreError,
    Write,
)

Hook: TypeAlias = Callable[[str], Awaitable[None]]

PROGRESS_S = 5.0
SILENCE_S = 15.0


@dataclass
class _Lease:
    ttl_s: int
    deadline: float
    keys: dict[str, None] = field(default_factory=dict)


class SimEtcd:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        #: A fresh etcd is at revision 1.
        self.revision = 1
        self.compacted = 0
        self.entries: dict[str, Entry] = {}
        self._history: list[Revision] = []
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 7000
        self._news = asyncio.Event()

    # ------------------------------------------------------------------ state

    def expire(self) -> None:
        """End the leases whose time is up; each takes its keys along in one revision."""
        now = self.clock.monotonic()
        for lease_id in [i for i, lease in self._leases.items() if lease.deadline <= now]:
            self.end_lease(lease_id)

    def transact(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> Outcome:
        self.expire()
        if not all(map(self._holds, guard)):
            return Outcome(self.revision, False, (False,) * len(branches))
        # As in etcd, every compare sees the state before the transaction.
        taken = tuple(all(map(self._holds, branch.compares)) for branch in branches)
        writes = [w for branch, yes in zip(branches, taken, strict=True) if yes for w in branch.writes]
        every_key = [w.key for branch in branches for w in branch.writes]
        if len(set(every_key)) != len(every_key):
            raise StoreError("duplicate key given in txn request")
        for write in writes:
            if isinstance(write, Put) and write.lease and write.lease not in self._leases:
                raise LeaseExpired(f"Lease {write.lease} is not there.")
        self._write(writes)
        return Outcome(self.revision, True, taken)

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        if entry is None:
            return compare.revision == 0
        found = entry.mod_revision if isinstance(compare, ModRevisionIs) else entry.create_revision
        return found == compare.revision

    def _write(self, writes: Sequence[Write]) -> None:
        revision = self.revision + 1
        changes: list[Changed | Removed] = []
        for write in writes:
            old = self.entries.pop(write.key, None)
            if old is not None and old.lease in self._leases:
                self._leases[old.lease].keys.pop(old.key, None)
            if isinstance(write, Put):
                created = revision if old is None else old.create_revision
                entry = Entry(write.key, write.value, created, revision, write.lease)
                self.entries[write.key] = entry
                if write.lease:
                    self._leases[write.lease].keys[write.key] = None
                changes.append(Changed(entry))
            elif old is not None:
                changes.append(Removed(write.key))
        if changes:
            self.revision = revision
            self._history.append(Revision(revision, tuple(changes)))
            self.wake()

    # ------------------------------------------------------------------ leases

    def grant(self, ttl_s: int) -> int:
        self._next_lease += 1
        ttl_s = max(2, ttl_s)
        self._leases[self._next_lease] = _Lease(ttl_s, self.clock.monotonic() + ttl_s)
        return self._next_lease

    def keep_alive(self, lease_id: int) -> float:
        self.expire()
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseExpired(f"Lease {lease_id} has ended.")
        lease.deadline = self.clock.monotonic() + lease.ttl_s
        return float(lease.ttl_s)

    def end_lease(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._write([Delete(key) for key in lease.keys])

    def next_expiry_s(self) -> float:
        now = self.clock.monotonic()
        return min((lease.deadline - now for lease in self._leases.values()), default=PROGRESS_S)

    # ------------------------------------------------------------------ history

    def since(self, prefix: str, after_revision: int) -> list[Revision]:
        """What a watcher has not seen; HistoryCompacted when that is no longer known."""
        self.expire()
        if after_revision + 1 < self.compacted:
            raise HistoryCompacted(f"Revisions before {self.compacted} are no longer kept.")
        missed = self._history[bisect_right(self._history, after_revision, key=lambda r: r.revision) :]
        cut = [
            Revision(r.revision, tuple(c for c in r.changes if _key(c).startswith(prefix))) for r in missed
        ]
        return [r for r in cut if r.changes]

    def compact(self, revision: int) -> None:
        if revision > self.revision:
            raise StoreError("required revision is a future revision")
        self.compacted = max(self.compacted, revision)
        self._history = [r for r in self._history if r.revision >= self.compacted]
        self.wake()

    def backup(self) -> tuple[int, dict[str, Entry]]:
        return self.revision, dict(self.entries)

    def restore(self, backup: tuple[int, dict[str, Entry]]) -> None:
        """Back to an older state: etcd neither says so nor ends the watches."""
        self.revision, entries = backup
        self.entries = dict(entries)
        self._history = [r for r in self._history if r.revision <= self.revision]

    # ------------------------------------------------------------------ waking watchers

    def wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait(self, seconds: float) -> None:
        """Until something changes, or so much time has passed on the injected clock."""
        tasks = {
            asyncio.ensure_future(self._news.wait()),
            asyncio.ensure_future(self.clock.sleep(seconds)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


class SimStore:
    def __init__(self, server: SimEtcd) -> None:
        self.server = server
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.silent = False
        self._breaks = 0
        #: Operations that reached the server, by name.
        self.counts: dict[str, int] = {}

    def break_watches(self) -> None:
        self._breaks += 1
        self.server.wake()

    async def get(self, key: str) -> Entry | None:
        await self._arrive("get")
        self.server.expire()
        found = self.server.entries.get(key)
        await self._answer("get")
        return found

    async def scan(self, prefix: str) -> Snapshot:
        await self._arrive("scan")
        self.server.expire()
        found = sorted(
            (e for e in self.server.entries.values() if e.key.startswith(prefix)), key=lambda e: e.key
        )
        snapshot = Snapshot(self.server.revision, tuple(found))
        await self._answer("scan")
        return snapshot

    async def transact(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> Outcome:
        invariant(len(branches) <= BRANCHES_MAX, f"{len(branches)} branches in one transaction")
        for branch in branches:
            widest = max(len(branch.compares), len(branch.writes))
            invariant(widest <= BRANCH_OPS_MAX, f"{widest} operations in one branch")
        await self._arrive("transact")
        outcome = self.server.transact(guard, branches)
        await self._answer("transact")
        return outcome

    async def compact(self, revision: int) -> None:
        await self._arrive("compact")
        self.server.compact(revision)
        await self._answer("compact")

    async def grant_lease(self, ttl_s: int) -> int:
        await self._arrive("grant_lease")
        lease = self.server.grant(ttl_s)
        await self._answer("grant_lease")
        return lease

    async def keep_alive(self, lease: int) -> float:
        await self._arrive("keep_alive")
        ttl_s = self.server.keep_alive(lease)
        await self._answer("keep_alive")
        return ttl_s

    async def revoke_lease(self, lease: int) -> None:
        await self._arrive("revoke_lease")
        self.server.end_lease(lease)
        await self._answer("revoke_lease")

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Revision]:
        await self._arrive("watch")
        clock, breaks, delivered = self.server.clock, self._breaks, after_revision
        heard = clock.monotonic()
        if not self.silent:
            yield Revision(delivered, ())
        while True:
            if self._breaks != breaks:
                raise StoreError("The watch was broken.")
            if self.silent:
                if clock.monotonic() - heard >= SILENCE_S:
                    raise StoreError(f"The watch was silent for {SILENCE_S:g} s.")
                await self.server.wait(PROGRESS_S)
                continue
            for revision in self.server.since(prefix, delivered):
                delivered, heard = revision.revision, clock.monotonic()
                yield revision
            if clock.monotonic() - heard >= PROGRESS_S:
                if self.server.revision < delivered:
                    raise StoreError(f"The store went back from {delivered} to {self.server.revision}.")
                heard = clock.monotonic()
                yield Revision(delivered, ())
            if not self.server.since(prefix, delivered) and self._breaks == breaks:
                await self.server.wait(max(0.0, min(PROGRESS_S, self.server.next_expiry_s())))

    async def close(self) -> None:
        self.break_watches()

    async def _arrive(self, operation: str) -> None:
        # One turn of the loop, as every real call takes, so that races between callers can show.
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(operation)
        self.counts[operation] = self.counts.get(operation, 0) + 1

    async def _answer(self, operation: str) -> None:
        await asyncio.sleep(0)
        if self.after is not None:
            await self.after(operation)


def _key(change: Changed | Removed) -> str:
    return change.entry.key if isinstance(change, Changed) else change.key
