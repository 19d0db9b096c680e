"""Writes a log's unsynced files again, after its directory has failed. [S]

When an fsync fails, the kernel takes the pages for clean: they are read as before and never written again, so a later
fsync succeeds and proves nothing. Data that may not be durable is therefore copied into new files, which are
synced and then take the old names. A death in between leaves the old file, and a `.tmp` that `leftovers.py` removes.

Called by `LogDirs` before it opens such a log; what the disk no longer has is found by the scan that follows.
"""

from __future__ import annotations

from ottla_broker.log.files import LEADER_EPOCHS, LOG, PARTITION_METADATA, SNAPSHOT, TXN_INDEX, parse_name
from ottla_broker.log.leftovers import settle
from ottla_core.ports.disk import Disk

_CHUNK_BYTES = 1 << 20


def rewrite_unsynced(disk: Disk, folder: str, recovery_point: int) -> None:
    """Offset and time indexes are left alone: the scan makes them again. It keeps an index of aborted transactions that
    is right, so that one has to be durable. Blocks."""
    names = settle(disk, folder, disk.list(folder))
    parsed = {name: parse_name(name) for name in names}
    bases = sorted(p.base_offset for p in parsed.values() if p is not None and p.kind == LOG)
    # The last one that begins at or below the recovery point may reach beyond it.
    first = max((base for base in bases if base <= recovery_point), default=0)
    for name, parts in parsed.items():
        path = f"{folder}/{name}"
        if parts is not None and parts.kind in (LOG, TXN_INDEX) and parts.base_offset >= first:
            _copy(disk, path)
        elif name in (LEADER_EPOCHS, PARTITION_METADATA) or (parts is not None and parts.kind == SNAPSHOT):
            disk.write_file(path, disk.read_file(path))
    disk.sync_dir(folder)


def _copy(disk: Disk, path: str) -> None:
    source, target = disk.open(path), disk.open(f"{path}.tmp", create=True)
    try:
        position = 0
        while data := source.read(position, _CHUNK_BYTES):
            target.append([data])
            position += len(data)
        target.sync()
    finally:
        source.close()
        target.close()
    disk.rename(f"{path}.tmp", path)
