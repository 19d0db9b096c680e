"""Putting compacted segments in the place of those they were made from. [S]

Each step leaves a folder that `leftovers.settle` completes or undoes, also if power is lost between any two:

1. New segments are complete as `.cleaned` and synced. Crash: they are removed.
2. They become `.swap`, the highest offset first, and that is synced. Crash with some still `.cleaned`: all go.
   Crash after: the replacement is completed at the next start.
3. Old segments become `.deleted`, and that is synced: from here on the old ones cannot come back beside the new.
4. New segments take their names. Crash: as after step 2, so this need not be synced; the log's next flush does it.

Step 1 may take its time, on a thread. The rest is done in one go on the loop, with two syncs of the folder: if the
log could be cut between steps 2 and 3, a crash there would bring back what was cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_broker.log.files import CLEANED, DELETED, SNAPSHOT, SWAP
from ottla_broker.log.segment import Segment
from ottla_core.errors import invariant
from ottla_core.ports.disk import Disk


def complete(segment: Segment) -> None:
    """Step 1, for each new segment. Blocks."""
    segment.seal()
    for file in segment.synced_files():
        file.sync()
    segment.disk.sync_dir(segment.folder)


def replace(
    disk: Disk, folder: str, present: Sequence[Segment], old: Sequence[Segment], new: Sequence[Segment]
) -> list[Segment]:
    """Steps 2 to 4. Gives the row of segments as it is afterwards; old ones are `.deleted`, for the caller to purge."""
    invariant(old and all(s in present[:-1] for s in old), "only sealed segments of this log are replaced")
    invariant(all(s.suffix == CLEANED and not s.is_active for s in new), "a replacement is complete")
    bases = {segment.base_offset for segment in new}
    low, high = old[0].base_offset, old[-1].base_offset
    invariant(all(low <= base <= high for base in bases), "a replacement lies within what it replaces")
    incoming = sorted(new, key=lambda s: s.base_offset)
    for segment in reversed(incoming):
        segment.rename_to(SWAP)
    disk.sync_dir(folder)
    for segment in reversed(old):
        segment.is_retired = True
        # The producer state before a base offset is as true for the segment that comes.
        segment.rename_to(DELETED, keep=(SNAPSHOT,) if segment.base_offset in bases else ())
    disk.sync_dir(folder)
    for segment in incoming:
        segment.rename_to("")
    left = [segment for segment in present if segment not in old]
    return sorted([*left, *incoming], key=lambda s: s.base_offset)
