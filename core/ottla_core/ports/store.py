"""The metadata store: etcd's model of revisions, compare-and-set, leases and watches, and nothing more.

Keys are text below one cluster prefix; the adapter adds and strips the prefix, so `topics/a` here is
`/ottla/<cluster>/topics/a` in etcd. Every change has a revision, and revisions only grow; two changes in one
transaction share one revision. A key's `create_revision` changes when it
is recreated, its `mod_revision` with every write.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


class StoreError(Exception):
    """The store could not answer. The outcome of a write is unknown: read back before trying again."""


class LeaseExpired(StoreError):
    """The lease has expired; all keys written under it are deleted."""


class HistoryCompacted(StoreError):
    """The watch starts at a compacted revision; read the keys again and diff."""


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries below a prefix, as they were together at one revision."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class ModRevisionIs:
    """True if the key has this mod revision; 0 means that the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class CreateRevisionIs:
    """True if the key has this create revision; 0 means that the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Compare: TypeAlias = ModRevisionIs | CreateRevisionIs
Write: TypeAlias = Put | Delete


@dataclass(frozen=True, slots=True)
class Branch:
    """Writes that are applied atomically if all compares hold."""

    compares: tuple[Compare, ...]
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a transaction: whether the guard held, which branches were applied, the revision after it."""

    revision: int
    guard_held: bool
    taken: tuple[bool, ...]

    @property
    def all_taken(self) -> bool:
        return self.guard_held and all(self.taken)


@dataclass(frozen=True, slots=True)
class Changed:
    entry: Entry


@dataclass(frozen=True, slots=True)
class Removed:
    key: str


@dataclass(frozen=True, slots=True)
class Revision:
    """All changes of one revision below the watched prefix; never split, never merged with another.

    Empty `changes` are a progress notification: there are no other changes up to `revision`.
    """

    revision: int
    changes: tuple[Changed | Removed, ...]


#: etcd's default limit is 128 operations per transaction; the guard and its wrapper take some of them.
BRANCHES_MAX = 125
#: Operations that this limit leaves per branch (etcd counts the deepest path) and for the guard.
BRANCH_OPS_MAX = 3


class MetadataStore(Protocol):
    async def get(self, key: str) -> Entry | None:
        """One key, linearizable."""

    async def scan(self, prefix: str) -> Snapshot:
        """All keys below a prefix, read in pages pinned to one revision."""

    async def transact(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> Outcome:
        """If all of `guard` holds, try each branch on its own (at most BRANCHES_MAX); else do nothing.

        One race fails one branch, not the batch. Branches must not write the same key, and have at most
        BRANCH_OPS_MAX compares and writes each. LeaseExpired if a write uses an expired lease.
        """

    async def grant_lease(self, ttl_s: int) -> int:
        """A new lease. etcd rounds 1 s up to 2."""

    async def keep_alive(self, lease: int) -> float:
        """Renew; returns the granted seconds. LeaseExpired if it has expired, StoreError without a response."""

    async def revoke_lease(self, lease: int) -> None:
        """Revoke a lease and delete its keys; no error if it has expired."""

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Revision]:
        """Every change after a revision, whole revisions in order, with progress notifications at least every 10 s.

        The first progress notification comes as soon as the watch is established.

        Ends only by an exception: HistoryCompacted, or StoreError when the connection or the quorum is lost.
        """

    async def compact(self, revision: int) -> None:
        """Compact the history before a revision; no error if it is compacted already. Current keys stay."""

    async def close(self) -> None: ...
