"""Cutting what was read from a log to whole batches. [P]"""

from __future__ import annotations

import struct

from ottla_core.errors import CorruptMessage
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import HEADER_BYTES, LOG_OVERHEAD, crc_of

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_CRC_AT = 17
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23


def whole_batches_in(data: Buffer, *, check_crc: bool) -> tuple[Buffer, int]:
    """The complete batches, and the offset after the last of them.

    `check_crc`: for batches that have been on disk for a while. The follower checks every batch that it writes, but
    it cannot distinguish damage in the leader's log from damage in transit, and would ask for it again and again.
    """
    at, end, next_offset = 0, len(data), -1
    while end - at >= HEADER_BYTES:
        base_offset, length = _OFFSET_AND_LENGTH.unpack_from(data, at)
        if length < HEADER_BYTES - LOG_OVERHEAD:
            raise CorruptMessage(f"A batch at offset {base_offset} says that it has {length} bytes.")
        following = at + length + LOG_OVERHEAD
        if following > end:
            break
        if check_crc and crc_of(data, at, following - at) != _CRC.unpack_from(data, at + _CRC_AT)[0]:
            raise CorruptMessage(f"The CRC of the batch at offset {base_offset} is wrong.")
        (last_delta,) = _LAST_DELTA.unpack_from(data, at + _LAST_DELTA_AT)
        next_offset = base_offset + last_delta + 1
        at = following
    if not at:
        raise CorruptMessage(f"{end} bytes hold no whole batch.")
    return (data if at == end else memoryview(data)[:at]), next_offset
