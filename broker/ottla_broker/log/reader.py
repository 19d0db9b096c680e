"""Reads batches for everything that sends or replays a log: from the page cache at once, else on a thread. [S]

Used on the loop by client fetches, Follow streams and coordinators that load; each has a reader of its own. Reading
has two steps, because a fetch may wait between them: `locate` finds the extent, `cached` or `on_thread` reads it.

* R1: the loop does not wait for the disk. `NotLoaded` from `locate` names what is missing in memory, and `warm` has a
  thread load it. Only if that has failed, or after `COLD_LOOKS_MAX` looks in a row, does the next look wait: it then
  shows the error, or ends the race against a page cache that keeps nothing.
* R2: bytes from the disk have their CRCs checked, on the thread that has read them. Bytes from the page cache are not
  checked unless the caller asks for it (decision 13).
* R3: a segment that was removed or replaced after it was located gives no bytes. The caller locates again.

What a disk error or damage means for the partition is the caller's decision.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from ottla_broker.log.log import Log
from ottla_broker.log.offset_index import BadIndex
from ottla_broker.log.reading import Extent, NotLoaded
from ottla_core.errors import CorruptMessage
from ottla_core.ports.offload import Offload
from ottla_core.records.batch import complete_batches, verify

#: One look may find four things missing, one after the other, and what a thread has read may be evicted again.
COLD_LOOKS_MAX = 20
#: More than this is copied on a thread: 0.2 to 2 ms per MB, depending on where the allocator finds the pages. Stock
#: clients ask for 1 MB per partition.
_LARGE_BYTES = 2 << 20


class Batches(NamedTuple):
    """What a thread has read: the batches before the first damaged one, and what is wrong with that one."""

    data: bytes
    damage: CorruptMessage | None = None
    is_checked: bool = True


class LogReader:
    __slots__ = ("_looks", "_offload")

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        #: Looks in a row that would have had to wait for the disk.
        self._looks = 0

    def locate(
        self,
        log: Log,
        offset: int,
        max_bytes: int,
        *,
        limit_offset: int,
        min_one: bool = True,
    ) -> Extent | None:
        """See `Log.read`. `NotLoaded` if it would wait for the disk: `warm` that, and locate again (R1)."""
        wait = self._looks >= COLD_LOOKS_MAX
        return log.read(offset, max_bytes, limit_offset=limit_offset, min_one=min_one, wait=wait)

    async def warm(self, *cold: NotLoaded) -> None:
        """Have a thread load what `locate` has missed."""
        self._looks += 1
        for each in cold:
            try:
                await self._offload.run(each.work)
            except CorruptMessage:
                pass  # The segment remembers.
            except (OSError, ValueError, BadIndex):
                self._looks = COLD_LOOKS_MAX  # Retired meanwhile, or its disk fails: the log will know which.

    def cached(self, extent: Extent) -> bytes | None:
        """None if a thread has to read it: it is large, not in memory, or cannot be read."""
        if extent.size > _LARGE_BYTES:
            return None
        try:
            data = extent.file.read_cached(extent.position, extent.size)
        except (OSError, ValueError):
            return None
        if data is not None:
            self._looks = 0
        return data

    async def on_thread(self, extent: Extent, *, check: bool = False) -> Batches:
        """Read on a thread. `check`: even if the bytes are in the page cache. OSError if the disk fails."""
        try:
            found = await self._offload.run(partial(_read, extent, check))
        except (FileNotFoundError, ValueError):
            return Batches(b"")  # R3
        self._looks = 0
        return found

    async def read(self, log: Log, offset: int, max_bytes: int, *, limit_offset: int) -> Batches | None:
        """Both steps for a caller that can wait: None if there is nothing to read; no bytes means read again (R3)."""
        while True:
            try:
                extent = self.locate(log, offset, max_bytes, limit_offset=limit_offset)
            except NotLoaded as cold:
                await self.warm(cold)
                continue
            if extent is None:
                return None
            data = self.cached(extent)
            return await self.on_thread(extent) if data is None else Batches(data, is_checked=False)


def _read(extent: Extent, check: bool) -> Batches:
    if extent.size > _LARGE_BYTES and not check:
        cached = extent.file.read_cached(extent.position, extent.size)
        if cached is not None:
            return Batches(cached, is_checked=False)
    data, end = extent.file.read(extent.position, extent.size), 0
    try:
        for position, header in complete_batches(data):
            if not verify(data, position, header):
                return Batches(
                    data[:position],
                    CorruptMessage(f"The CRC of the batch at offset {header.base_offset} is wrong."),
                )
            end = position + header.size
    except CorruptMessage as damage:
        return Batches(data[:end], damage)
    return Batches(data)
