"""Appends whose batches take too long to check in one turn of the event loop. [S]

Called by `RecordService` only. Checking runs in steps of a millisecond or two, decompression on a thread, and the
batches are written when it is done.

* V1: appends to one partition are written in the order in which they came. While one is being checked, all later ones
  wait for it, also those that could be written at once; else pipelined sequences would arrive out of order.
* V2: a started write is completed, also if its client has disconnected: later writes wait for it.
* V3: at most `PENDING_BYTES_MAX` wait; beyond that writes are refused, and clients try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.validation import Accepted
from ottla_broker.partition.partition import Partition
from ottla_broker.requests import Appended
from ottla_core.errors import RequestTimedOut
from ottla_core.ports.clock import Clock
from ottla_core.ports.disk import Buffer
from ottla_core.ports.offload import Offload

#: Bytes of all batches that are being checked or wait for their turn. Sixty-four batches of the usual maximum.
PENDING_BYTES_MAX = 64 << 20
#: Batches that are checked at the same time, because each may inflate to 16 MB.
CHECKED_AT_ONCE = 4


class Validating:
    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock = clock
        self._offload = offload
        #: The last append of each partition that has any here; later ones wait for it (V1).
        self._tails: dict[Partition, asyncio.Task[Appended]] = {}
        self._turns = asyncio.Semaphore(CHECKED_AT_ONCE)
        self.pending_bytes = 0

    def is_busy(self, partition: Partition) -> bool:
        """Whether an append to it has to wait for earlier ones."""
        return partition in self._tails

    def append(
        self,
        partition: Partition,
        records: Buffer,
        acks: int,
        check_transaction: Callable[[], None] | None = None,
    ) -> asyncio.Future[Appended]:
        """Check and write. The records are copied before this returns."""
        size = len(records)
        if self.pending_bytes + size > PENDING_BYTES_MAX:
            raise RequestTimedOut(
                f"{self.pending_bytes} bytes of batches are waiting for validation on this broker; try again."
            )
        self.pending_bytes += size
        before = self._tails.get(partition)
        task = asyncio.ensure_future(self._run(partition, bytes(records), acks, before, check_transaction))
        self._tails[partition] = task
        task.add_done_callback(_retrieved)
        return asyncio.shield(task)  # V2

    async def _run(
        self,
        partition: Partition,
        records: bytes,
        acks: int,
        before: asyncio.Task[Appended] | None,
        check_transaction: Callable[[], None] | None,
    ) -> Appended:
        origin = AppendOrigin.CLIENT if check_transaction is None else AppendOrigin.TRANSACTION
        try:
            error: Exception | None = None
            accepted: list[Accepted] = []
            try:
                async with self._turns:
                    accepted = await self._check(partition, records, origin)
            except Exception as found:
                error = found
            if before is not None and not before.done():
                await asyncio.wait((before,))
            if error is not None:
                raise error
            if check_transaction is not None:
                check_transaction()
            return partition.append(records, acks, self._clock.wall_ms(), origin=origin, accepted=accepted)
        finally:
            self.pending_bytes -= len(records)
            if self._tails.get(partition) is asyncio.current_task():
                del self._tails[partition]

    async def _check(self, partition: Partition, records: bytes, origin: AppendOrigin) -> list[Accepted]:
        partition.check_leader()
        steps = partition.log.accepting(records, self._clock.wall_ms(), origin)
        sent: object = None
        try:
            while True:
                work = steps.send(sent)
                sent = None
                if work is None:
                    await self._clock.sleep(0)
                    continue
                try:
                    sent = await self._offload.run(work)
                except Exception as error:
                    # The steps may map it to a better error.
                    work = steps.throw(error)
                    sent = None if work is None else await self._offload.run(work)
        except StopIteration as done:
            accepted: list[Accepted] = done.value
            return accepted


def _retrieved(task: asyncio.Task[Appended]) -> None:
    """Mark the exception as retrieved: the client may have disconnected."""
    if not task.cancelled():
        task.exception()
