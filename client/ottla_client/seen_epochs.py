"""The leader epochs of the records that a consumer has read from one partition. [P]

A position is committed with the epoch of the record before it, so that the next reader can ask the leader whether its
log still contains that record (KIP-320).
"""

from __future__ import annotations

from ottla_core.ids import NO_EPOCH

#: Changes of the epoch that are kept: records that are read ahead rarely span more than one. Positions before the
#: oldest have no epoch.
_KEPT = 8


class SeenEpochs:
    __slots__ = ("_starts",)

    def __init__(self) -> None:
        #: Offset from which on records have been read in an epoch.
        self._starts: list[tuple[int, int]] = []

    def note(self, offset: int, epoch: int) -> None:
        """The record at the offset has this epoch."""
        if epoch == NO_EPOCH:
            return
        if not self._starts or self._starts[-1][1] != epoch:
            self._starts.append((offset, epoch))
            del self._starts[:-_KEPT]

    def before(self, offset: int) -> int:
        """The epoch of the last record before the offset; NO_EPOCH if unknown."""
        return next((epoch for start, epoch in reversed(self._starts) if start < offset), NO_EPOCH)

    def start_at(self, offset: int, epoch: int) -> None:
        """Reading begins at the offset, and the record before it has this epoch (NO_EPOCH: unknown)."""
        self._starts.clear()
        if offset > 0:
            self.note(offset - 1, epoch)
