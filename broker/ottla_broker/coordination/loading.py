"""Replaying a partition of an internal topic into a new shard. [S]

Reads up to the end that the log had when the leadership began (design rule 20), in pieces, and yields the loop between
them: a shard with a hundred thousand keys takes a good part of a second, and other clients do not wait for it.
"""

from __future__ import annotations

import structlog

from ottla_broker.coordination.batching import entries_in
from ottla_broker.coordination.shard import Shard, replay_entry
from ottla_broker.log.reader import Batches, LogReader
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
    log, reader = partition.log, LogReader(offload)
    offset, count = log.start_offset, 0
    partition.check_leader(epoch)
    while offset < end_offset:
        try:
            piece = await reader.read(log, offset, _PIECE_BYTES, limit_offset=end_offset)
        except OffsetOutOfRange:
            offset = max(offset, log.start_offset)
            if offset >= end_offset:
                break
            continue
        if piece is None:
            break
        partition.check_leader(epoch)  # Else the log may have been truncated meanwhile.
        try:
            _check(piece)
        except CorruptMessage:
            # Another replica leads then, and this one is repaired (`partition.mending`).
            log.note_damage(offset, f"a damaged batch at or behind offset {offset}")
            raise
        after, found = _replay_piece(piece.data, offset, shard)
        if after == offset:
            # Compaction replaced the file meanwhile: read again.
            _log.info(
                "log segment changed while loading; retrying", partition=str(partition.tp), offset=offset
            )
        offset, count = after, count + found
        await clock.sleep(0)
    return count


def _check(piece: Batches) -> None:
    if piece.damage is not None:
        raise piece.damage
    for position, header in () if piece.is_checked else complete_batches(piece.data):
        if not verify(piece.data, position, header):
            raise CorruptMessage(f"The CRC of the batch at offset {header.base_offset} is wrong.")


def _replay_piece(data: bytes, offset: int, shard: Shard) -> tuple[int, int]:
    """Where to go on, and how many records were replayed."""
    count = 0
    for position, header in complete_batches(data):
        if header.next_offset <= offset:
            continue
        for entry in entries_in(data, position, header, offset):
            replay_entry(shard, entry)
            count += 1
        offset = header.next_offset
    return offset, count
