"""Replaces segments by the compacted segment that was made from them. [S]

Each step leaves a folder that `leftovers.settle` completes or undoes, also if power is lost between any two:

1. The new segment is complete as `.cleaned` and synced. Crash: it is removed.
2. It becomes `.swap`, its log file last. Synced. Crash before that is on the disk: as in 1. Crash after: the
   replacement is completed at the next start.
3. The old segments become `.deleted`. Synced: from now on they cannot come back beside the new one. Until step 4 they
   are still what is read, under their new names.
4. The new segment takes its name, its log file first: a crash in between leaves its other files to be renamed. This
   need not be synced, since a crash is as one after step 3; the log's next flush does it.

The syncs are done by a thread, and the log goes on meanwhile: it appends, rolls and is read. What would be undone by a
replacement that is completed at the next start (a truncation, the removal of segments) first ends the running one:

* after step 2 it is called off. The name of the log file goes back to `.cleaned`, in one rename and before anything is
  cut: `settle` then throws away what is left, `.swap` or not;
* after step 3 the old segments are as good as removed, so it is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from ottla_broker.log.files import CLEANED, DELETED, LOG, SNAPSHOT, SWAP
from ottla_broker.log.flushing import Flushing
from ottla_broker.log.reading import ExtentFinder
from ottla_broker.log.removal import Doomed
from ottla_broker.log.segment import Segment
from ottla_core.errors import invariant
from ottla_core.ports.disk import Disk

if TYPE_CHECKING:
    from ottla_broker.log.log import Log


def complete(segment: Segment) -> None:
    """Step 1. Blocks."""
    segment.seal()
    for file in segment.synced_files():
        file.sync()
    segment.disk.sync_dir(segment.folder)


class _Replacement:
    """Old neighbours and the segment that takes their place: steps 2 to 4. All but `sync` is for the loop."""

    __slots__ = ("_disk", "_folder", "is_retired", "new", "old")

    def __init__(
        self, disk: Disk, folder: str, present: Sequence[Segment], old: Sequence[Segment], new: Segment
    ) -> None:
        invariant(
            old and all(s in present[:-1] for s in old), "only sealed segments of this log are replaced"
        )
        invariant(new.suffix == CLEANED and not new.is_active, "a replacement is complete")
        low, high = old[0].base_offset, old[-1].base_offset
        invariant(low <= new.base_offset <= high, "a replacement lies within what it replaces")
        self._disk = disk
        self._folder = folder
        self.old = tuple(old)
        self.new = new
        #: Whether step 3 has begun: there is no way back.
        self.is_retired = False

    def begin(self) -> None:
        """Step 2; to be synced."""
        self.new.rename_to(SWAP)

    def sync(self) -> None:
        """Make the names durable as they are now. Blocks; runs anywhere."""
        self._disk.sync_dir(self._folder)

    def retire(self) -> None:
        """Step 3; to be synced."""
        self.is_retired = True
        for segment in reversed(self.old):
            segment.is_retired = True
            # The producer state before a base offset is as true for the segment that comes.
            keep = (SNAPSHOT,) if segment.base_offset == self.new.base_offset else ()
            segment.rename_to(DELETED, keep=keep)

    def finish(self, present: Sequence[Segment]) -> list[Segment]:
        """Step 4. Return the new list of segments; the caller purges the old ones."""
        self.new.rename_to("", log_first=True)
        left = [segment for segment in present if segment not in self.old]
        return sorted([*left, self.new], key=lambda s: s.base_offset)

    def call_off(self) -> None:
        """Abort before step 3. Durable with the next sync of the folder, like everything done to it before."""
        new = self.new
        new.close()
        swapped = new.all_paths()
        new.suffix = CLEANED
        self._disk.rename(swapped[0], new.path(LOG))
        for path in (*swapped[1:], new.path(LOG)):
            self._disk.remove(path)


class Replacing:
    """What is being replaced in one log: one thing at a time. All but what `run` yields is for the loop."""

    __slots__ = ("_disk", "_doomed", "_finder", "_flushing", "_folder", "_under_way")

    def __init__(
        self, disk: Disk, folder: str, doomed: Doomed, flushing: Flushing, finder: ExtentFinder
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._doomed = doomed
        self._flushing = flushing
        self._finder = finder
        self._under_way: _Replacement | None = None

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    def run(
        self, log: Log, old: Sequence[Segment], new: Segment, now_ms: int
    ) -> Generator[Callable[[], None], None, bool]:
        """See `Log.replace_segments`."""
        log.check_usable()
        self.end(log, now_ms)
        mine = _Replacement(self._disk, self._folder, log.segments, old, new)
        self._under_way = mine
        try:
            mine.begin()
            yield mine.sync
            if self._goes_on(log, mine):
                if not self._doomed.give_way(mine.old):
                    self.end(log, now_ms)  # Another time: the cleaner comes by again.
                    return False
                self._finder.forget()
                mine.retire()
                yield mine.sync
            if self._goes_on(log, mine):
                self._finish(log, mine, now_ms)
        except OSError as error:
            log.mark_broken(error)
            log.check_usable()
        return new in log.segments

    def _goes_on(self, log: Log, mine: _Replacement) -> bool:
        log.check_usable()
        return self._under_way is mine

    def end(self, log: Log, now_ms: int) -> None:
        """Undo or complete the running replacement now: the log is about to be truncated or to lose segments."""
        under_way = self._under_way
        if under_way is None:
            return
        if under_way.is_retired:
            under_way.sync()
            self._finish(log, under_way, now_ms)
        else:
            under_way.call_off()
            self._under_way = None

    def _finish(self, log: Log, mine: _Replacement, now_ms: int) -> None:
        log.segments = mine.finish(log.segments)
        self._under_way = None
        self._finder.forget()
        self._flushing.add_name()
        for segment in mine.old:
            self._doomed.add(segment, now_ms + log.config.file_delete_delay_ms, renamed=True)
