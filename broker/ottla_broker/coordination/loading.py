"""Replaying a partition of an internal topic into a new shard. [S]

Reads up to the end that the log had when the leadership began (design rule 20), in pieces, and yields the loop between
them: a shard with a hundred thousand keys takes a good part of a second, and other clients do not wait for it.
"""

from __future__ import annotations

import structlog

from ottla_broker.coordination.batching import entries_in
from ottla_broker.coordination.shard import Shard, replay_entry
from ottla_broker.log.reading import COLD_LOOKS_MAX, Extent, NotLoaded, warm
from ottla_broker.partition.partition import Partition
from ottla_core.errors import CorruptMessage, OffsetOutOfRange
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload
from ottla_core.records.batch import complete_batches, verify

_log = structlog.get_logger("ottla.coordinators")

#: About two thousand records: some ten milliseconds of replay before others get their turn.
_PIECE_BYTES = 256 * 1024


async def replay_log(
    partition: Partition, epoch: int, end_offset: int, shard: Shard, clock: Clock, offload: Offload
) -> int:
    """Replay everything below `end_offset`; return the number of records. RequestError if it cannot be read."""
    offset, count, looks = partition.log.start_offset, 0, 0
    while offset < end_offset:
        partition.check_leader(epoch)
        try:
            wait = looks >= COLD_LOOKS_MAX
            extent = partition.log.read(offset, _PIECE_BYTES, limit_offset=end_offset, wait=wait)
        except NotLoaded as cold:
            looks = looks + 1 if await warm(offload, cold) else COLD_LOOKS_MAX
            continue
        except OffsetOutOfRange:
            offset = max(offset, partition.log.start_offset)
            if offset >= end_offset:
                break
            continue
        looks = 0
        if extent is None:
            break
        data = await _read(extent, offload)
        after, found = _replay_piece(data, offset, shard)
        if after == offset:
            # Compaction replaced the file meanwhile, and the piece came from the old one: read again.
            _log.info(
                "log segment changed while loading; retrying", partition=str(partition.tp), offset=offset
            )
        offset, count = after, count + found
        await clock.sleep(0)
    return count


def _replay_piece(data: bytes, offset: int, shard: Shard) -> tuple[int, int]:
    """Where to go on, and how many records were replayed."""
    count = 0
    for position, header in complete_batches(data):
        if header.next_offset <= offset:
            continue
        if not verify(data, position, header):
            raise CorruptMessage(f"The CRC of the batch at offset {header.base_offset} is wrong.")
        for entry in entries_in(data, position, header, offset):
            replay_entry(shard, entry)
            count += 1
        offset = header.next_offset
    return offset, count


async def _read(extent: Extent, offload: Offload) -> bytes:
    data = extent.file.read_cached(extent.position, extent.size)
    if data is not None:
        return data
    try:
        return await offload.run(lambda: extent.file.read(extent.position, extent.size))
    except (FileNotFoundError, ValueError):
        return b""  # The cleaner replaced the segment between locating and reading.
