"""Leader epochs of one partition: (epoch, start offset) pairs, Kafka's leader-epoch-checkpoint. [S]

Followers truncate their logs by it (KIP-101, KIP-279), consumers detect truncation with it (KIP-320).
The log calls `assign` at a leader's first append and for every new epoch in replicated batches, and
`save` before the bytes of such a batch are written.

E1: epochs rise strictly, start offsets do not fall.
E2: a batch of epoch e is in the log only if e is in the file: the file is written before the batch, and
    synced before the recovery point passes the epoch's start. Behind the recovery point nothing is lost
    with the file, because recovery reads every batch there and every batch carries its epoch. So a first
    append costs a write and a rename, not an fsync.

The file is read on first use: a broker with ten thousand partitions starts without it. One that is damaged then is
rebuilt from the log's batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from ottla_broker.log.checkpoint import BadCheckpoint, decode_epochs, encode_epochs
from ottla_broker.log.files import LEADER_EPOCHS
from ottla_core.ids import NO_EPOCH
from ottla_core.ports.disk import Disk

_log = structlog.get_logger("ottla.log")

NO_OFFSET = -1


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class EpochCache:
    __slots__ = ("_disk", "_entries", "_path", "from_log", "is_saved", "is_synced")

    def __init__(self, disk: Disk, folder: str, *, exists: bool = True) -> None:
        self._disk = disk
        self._path = f"{folder}/{LEADER_EPOCHS}"
        self._entries: list[EpochStart] | None = None if exists else []
        #: Returns (epoch, offset) of every batch in the log; set by the log.
        self.from_log: Callable[[], Iterable[tuple[int, int]]] | None = None
        #: False while memory knows more than the file.
        self.is_saved = True
        #: False while a power loss could take back what the file says.
        self.is_synced = True

    def load(self) -> None:
        """Read the file now. `BadCheckpoint` if it is damaged; one that is missing is empty."""
        if self._entries is None:
            try:
                self._entries = [
                    EpochStart(*pair) for pair in decode_epochs(self._disk.read_file(self._path))
                ]
            except FileNotFoundError:
                self._entries = []

    @property
    def entries(self) -> list[EpochStart]:
        if self._entries is None:
            try:
                self.load()
            except BadCheckpoint as error:
                # After a dirty stop recovery has read it before anyone else; so this is a damaged disk.
                if self.from_log is None:
                    raise OSError(f"{self._path} is damaged: {error}") from error
                _log.error("leader epoch checkpoint rebuilt from the log", path=self._path, reason=str(error))
                self.rebuild(self.from_log())
            self.from_log = None
        return self._entries or []

    def rebuild(self, batches: Iterable[tuple[int, int]]) -> None:
        self.clear()
        for epoch, offset in batches:
            self.assign(epoch, offset)

    def begin_at(self, start_offset: int, batches: Iterable[tuple[int, int]]) -> None:
        """The log begins here, by its checkpoint. Find the epochs of what the file has forgotten already.

        Records before a new start are forgotten at once, the new start is checkpointed later: a broker that is killed
        in between has those records again. Without their epochs no follower would notice that it has others there.
        """
        entries = self.entries
        if not entries or entries[0].start_offset <= start_offset:
            return
        earlier: list[EpochStart] = []
        for epoch, offset in batches:
            if offset >= entries[0].start_offset:
                break
            if not earlier or epoch > earlier[-1].epoch:
                earlier.append(EpochStart(epoch, offset))
        goes_on = bool(earlier) and earlier[-1].epoch == entries[0].epoch
        self._replace([*earlier, *entries[goes_on:]])

    @property
    def latest_epoch(self) -> int:
        entries = self._entries if self._entries is not None else self.entries
        return entries[-1].epoch if entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """A new epoch begins at `start_offset`. One that is known changes nothing."""
        if epoch <= self.latest_epoch:
            return
        # Epochs that wrote nothing leave no trace (E1).
        kept = [entry for entry in self.entries if entry.start_offset < start_offset]
        self._replace([*kept, EpochStart(epoch, start_offset)])

    def save(self) -> None:
        """Write the file, if it is not up to date."""
        if not self.is_saved:
            self._disk.write_file(self._path, encode_epochs(self.entries), sync=False)
            self.is_saved = True

    def take_unsynced(self) -> str | None:
        """The path of the file if it needs an fsync, which the caller promises to do before it counts."""
        if self.is_synced:
            return None
        self.save()
        self.is_synced = True
        return self._path

    def end_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The greatest epoch not above `epoch` and where it ends; (-1, -1) if nothing is known of it."""
        entries = self.entries
        if epoch == NO_EPOCH or not entries or epoch > entries[-1].epoch:
            return NO_EPOCH, NO_OFFSET
        after = bisect_right(entries, epoch, key=_epoch_of)
        if after == len(entries):
            return epoch, log_end
        if after == 0:
            # Older than all known epochs: it ended where the first one began, if it ever was in this log.
            return epoch, entries[0].start_offset
        return entries[after - 1].epoch, entries[after].start_offset

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 if that is not known."""
        entries = self.entries
        at = bisect_right(entries, offset, key=_start_of)
        return entries[at - 1].epoch if at else NO_EPOCH

    def truncate_end(self, end_offset: int) -> None:
        """The log was truncated: remove epochs that begin at its end or later."""
        kept = [entry for entry in self.entries if entry.start_offset < end_offset]
        if len(kept) != len(self.entries):
            self._replace(kept)
            self.save()

    def truncate_start(self, start_offset: int) -> None:
        """The log begins later now: forget epochs that end before it, and move the one that spans it."""
        entries = self.entries
        at = bisect_right(entries, start_offset, key=_start_of)
        if not at or entries[0].start_offset == start_offset:
            return
        self._replace([EpochStart(entries[at - 1].epoch, start_offset), *entries[at:]])
        self.save()

    def adopt(self, entries: list[EpochStart], end_offset: int) -> None:
        """Take the epochs of the log that this one is a copy of, up to this offset. Not synced."""
        known = [entry for entry in entries if entry.start_offset < end_offset]
        if known != self.entries:
            self._replace(known)
            self.save()

    def relocate(self, folder: str) -> None:
        """The log's folder has another name now."""
        self._path = f"{folder}/{LEADER_EPOCHS}"

    def clear(self) -> None:
        """Replace all epochs: the log was dropped, or the file is rebuilt from it."""
        self._replace([])

    def _replace(self, entries: list[EpochStart]) -> None:
        # A new list each time: readers on other threads keep the one they have.
        self._entries = entries
        self.is_saved = self.is_synced = False


def _epoch_of(entry: EpochStart) -> int:
    return entry.epoch


def _start_of(entry: EpochStart) -> int:
    return entry.start_offset
