"""Cleans up a partition folder after a crash in the middle of an operation. [S]

Called once, before segments are loaded. Kafka's rules, by suffix:

* `.deleted`: was on its way out. Goes.
* `.cleaned`: compaction had not finished writing it. Goes; what it was made from is still there.
* `.swap`: compaction had finished, and was replacing segments by it. The replacement is completed: segments
  it covers go, then it takes its final name. Safe to repeat at any point, because its files were synced
  before they got this suffix.
* `.swap` at or behind a `.cleaned`: not all of it was ready, or it was called off. It goes, and then the `.cleaned`: a
  death in between must not leave something that looks finished.

Small files are replaced through `.tmp`; a `.tmp` that is still there was never the truth.
"""

from __future__ import annotations

from ottla_broker.log.files import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    FileName,
    file_name,
    parse_name,
)
from ottla_broker.log.segment import Segment
from ottla_core.ports.disk import Disk

_SUFFIXES = (DELETED, CLEANED, SWAP, ".tmp")


def settle(disk: Disk, folder: str, names: list[str]) -> list[str]:
    """Undo or complete interrupted operations; return the remaining file names."""
    if not any(name.endswith(_SUFFIXES) for name in names):
        return names
    parsed = {name: parse_name(name) for name in names}
    cleaned = [p.base_offset for p in parsed.values() if p is not None and p.suffix == CLEANED]
    first_unfinished = min(cleaned, default=None)
    swaps: list[FileName] = []
    unwanted: list[str] = []
    for name, parts in parsed.items():
        if parts is None:
            if name.endswith(".tmp"):
                unwanted.append(name)
        elif parts.suffix == SWAP and (first_unfinished is None or parts.base_offset < first_unfinished):
            swaps.append(parts)
        elif parts.suffix:
            unwanted.append(name)
    for name in sorted(unwanted, key=lambda name: name.endswith(CLEANED)):
        disk.remove(f"{folder}/{name}")
    if swaps:
        _complete(disk, folder, swaps, [p for p in parsed.values() if p is not None and not p.suffix])
    disk.sync_dir(folder)
    return disk.list(folder)


def _complete(disk: Disk, folder: str, swaps: list[FileName], present: list[FileName]) -> None:
    coming = {s.base_offset for s in swaps if s.kind == LOG}
    for base in coming:
        end = _next_offset(disk, folder, base)
        for parts in present:
            # Indexes of the same base are replaced or rebuilt; the log file itself is replaced by the rename.
            covered = base < parts.base_offset < end
            stale = parts.base_offset == base and parts.kind in (INDEX, TIME_INDEX, TXN_INDEX)
            if covered or stale:
                disk.remove(f"{folder}/{file_name(parts.base_offset, parts.kind)}")
    # L4: replaced files must be durably removed before the replacement gets its name.
    disk.sync_dir(folder)
    # The log file first: while it is there as `.swap`, indexes with final names are taken for those of the old one.
    for parts in sorted(swaps, key=lambda s: s.kind != LOG):
        source = f"{folder}/{file_name(parts.base_offset, parts.kind, SWAP)}"
        if parts.base_offset in coming or disk.exists(f"{folder}/{file_name(parts.base_offset, LOG)}"):
            disk.rename(source, f"{folder}/{file_name(parts.base_offset, parts.kind)}")
        else:
            disk.remove(source)


def _next_offset(disk: Disk, folder: str, base: int) -> int:
    """The offset after the last batch of a segment that is to be swapped in."""
    segment = Segment(disk, folder, base, 4096, suffix=SWAP)
    found = segment.rescan(check_crc=False)
    segment.close()
    return found.next_offset
