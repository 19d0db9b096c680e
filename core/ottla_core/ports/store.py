"""The metadata store: etcd's model of revisions, compare-and-set, leases and watches, and nothing more.

Keys are text below one cluster prefix; the adapter adds and strips the prefix, so `topics/a` here is
`/ottla/<cluster>/topics/a` in etcd. Every change has a revision, and revisions only grow; two changes in one
transaction share one revision. A key's `create_revision` names its life, its `mod_revision` its version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


class StoreError(Exception):
    """The store could not answer. The outcome of a write is unknown: read back before trying again."""


class LeaseExpired(StoreError):
    """The lease is gone; everything written under it is gone as well."""


class HistoryCompacted(StoreError):
    """The watch asked for revisions that are no longer kept; re-read and diff."""


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
    """Holds if the key's version is this one; 0 means that the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class CreateRevisionIs:
    """Holds if the key's life is this one; 0 means that the key is absent."""

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
    """Writes that happen together if all compares hold, and not at all otherwise."""

    compares: tuple[Compare, ...]
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a transaction did: whether the guard held, which branches were taken, the revision after it."""

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

    An empty `changes` is a sign of life: the store says that it has nothing up to `revision`.
    """

    revision: int
    changes: tuple[Changed | Removed, ...]


#: etcd's default limit is 128 operations per transaction; the guard and its wrapper take some of them.
BRANCHES_MAX = 125
#: What the same limit leaves for each branch (etcd counts the deepest path), and for the guard.
BRANCH_OPS_MAX = 3


class MetadataStore(Protocol):
    async def get(self, key: str) -> Entry | None:
        """One key, linearizable."""

    async def scan(self, prefix: str) -> Snapshot:
        """All keys below a prefix, read in pages pinned to one revision."""

    async def transact(self, guard: Sequence[Compare], branches: Sequence[Branch]) -> Outcome:
        """If all of `guard` holds, try each branch on its own (at most BRANCHES_MAX); else do nothing.

        One race fails one branch, not the batch. Branches must not write the same key, and have at most
        BRANCH_OPS_MAX compares and writes each. LeaseExpired if a lease that is written under is gone.
        """

    async def grant_lease(self, ttl_s: int) -> int:
        """A new lease. etcd rounds 1 s up to 2."""

    async def keep_alive(self, lease: int) -> float:
        """Renew; gives the granted seconds. LeaseExpired when it is gone, StoreError when nobody answered."""

    async def revoke_lease(self, lease: int) -> None:
        """End a lease and remove its keys; fine if it is gone."""

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Revision]:
        """Every change after a revision, whole revisions in order, with signs of life at least every 10 s.

        The first sign of life comes as soon as the watch stands.

        Ends only by an exception: HistoryCompacted, or StoreError when the connection or the quorum is lost.
        """

    async def compact(self, revision: int) -> None:
        """Forget the history before a revision; fine if it is forgotten already. Present keys all stay."""

    async def close(self) -> None: ...
