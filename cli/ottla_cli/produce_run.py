"""One run of `ottla produce`: turn standard input into records, send them, count the outcomes. [A]

After Ctrl-C, records that were read are still sent, within a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from rich.progress import Progress

from ottla_cli.bars import progress
from ottla_cli.connecting import admin, check_partitions, describe_topic
from ottla_cli.failure import Failure
from ottla_cli.input_records import BadInput, NewRecord, Splitter
from ottla_cli.interrupts import PATIENCE_S
from ottla_cli.stdin_chunks import stdin_chunks
from ottla_client import Delivery, Producer
from ottla_client.errors import UnknownTopicOrPartition

#: Unsettled deliveries before reading pauses; the client's buffer bounds the bytes.
_PENDING_MAX = 100_000
#: Time to send what was read before Ctrl-C; then the rest is dropped and reported.
_PATIENCE_S = PATIENCE_S - 2


@dataclass
class Tally:
    """Outcomes of the records."""

    topic: str
    sent: int = 0
    size_bytes: int = 0
    written: int = 0
    failed: int = 0
    first_error: Exception | None = None
    #: First and last offset by partition.
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    pending: deque[Delivery] = field(default_factory=deque)

    def settle(self) -> None:
        """Count finished deliveries, oldest first."""
        while self.pending and self.pending[0].done():
            delivery = self.pending.popleft()
            error = delivery.exception()
            if error is not None:
                self.failed += 1
                self.first_error = self.first_error or error
                continue
            self.written += 1
            where = delivery.result()
            first, last = self.offsets.get(where.partition, (where.offset, where.offset))
            self.offsets[where.partition] = (min(first, where.offset), max(last, where.offset))


async def pieces_of(delimiter: bytes | None, limit_bytes: int) -> AsyncIterator[list[bytes]]:
    """Records of the input in groups, as they arrive. The last line needs no delimiter. None: one record."""
    splitter = None if delimiter is None else Splitter(delimiter, limit_bytes)
    whole: list[bytes] = []
    size = 0
    async for chunk in stdin_chunks():
        if splitter is not None:
            yield splitter.feed(chunk)
            continue
        size += len(chunk)
        if size > limit_bytes:
            raise BadInput(f"The input has more than {limit_bytes} bytes; raise --max-record-bytes.")
        whole.append(chunk)
    if splitter is None:
        yield [b"".join(whole)]
    elif rest := splitter.rest():
        yield [rest]


class ProduceRun:
    def __init__(
        self,
        bootstrap: str,
        producer: Producer,
        topic: str,
        partition: int | None,
        create: bool,
        pieces: AsyncIterator[list[bytes]],
        read: Callable[[bytes], NewRecord],
    ) -> None:
        self._bootstrap = bootstrap
        self._producer = producer
        self._partition = partition
        self._create = create
        self._pieces = pieces
        self._read = read
        #: Monotonic deadline for acknowledgements after Ctrl-C.
        self._give_up_at = 0.0
        self.tally = Tally(topic)

    async def run(self) -> bool:
        """Send all input; True if Ctrl-C ended it."""
        await self._check_topic()
        stop, task = asyncio.Event(), asyncio.current_task()

        def interrupted() -> None:
            # Records that were read are still sent, within the deadline; a second Ctrl-C exits at once.
            if stop.is_set() and task is not None:
                self._give_up_at = 0.0
                task.cancel()
            else:
                self._give_up_at = time.monotonic() + _PATIENCE_S
            stop.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)
        try:
            async with self._producer:
                try:
                    # No progress bar while a user types at a terminal.
                    with progress(
                        shown=sys.stderr.isatty() and not sys.stdin.isatty(), transient=True
                    ) as bar:
                        await self._send_all(stop, bar)
                    await self._until_deadline(self._producer.flush(), stop)
                finally:
                    if stop.is_set():
                        self._producer.stop_timeout_s = self._left_s()
        except asyncio.CancelledError:
            if task is None or not stop.is_set():
                raise
            task.uncancel()
        self.tally.settle()
        return stop.is_set()

    def _left_s(self) -> float:
        return max(0.0, self._give_up_at - time.monotonic())

    async def _until_deadline(self, work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
        """Run `work`; after Ctrl-C only until the deadline."""
        doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((doing, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await asyncio.wait((doing,), timeout=self._left_s())
            if doing.done():
                doing.result()
        finally:
            stopped.cancel()
            doing.cancel()

    async def _check_topic(self) -> None:
        async with admin(self._bootstrap) as client:
            if self._create and self.tally.topic not in await client.list_topics(include_internal=True):
                await client.create_topics([self.tally.topic])
            found = await describe_topic(client, self.tally.topic)
            check_partitions(found, None if self._partition is None else [self._partition])

    async def _send_all(self, stop: asyncio.Event, bar: Progress) -> None:
        task = bar.add_task(f"to {self.tally.topic}", total=None)
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while True:
                coming = asyncio.ensure_future(anext(self._pieces, None))
                await asyncio.wait((coming, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await coming
                    return
                try:
                    pieces = await coming
                except BadInput as bad:
                    raise Failure(str(bad)) from None
                if pieces is None:
                    return
                await self._until_deadline(self._send(pieces), stop)
                bar.update(task, completed=self.tally.sent)
                if self.tally.first_error is not None:
                    return  # the rest would most likely fail the same way
        finally:
            stopped.cancel()

    async def _send(self, pieces: list[bytes]) -> None:
        tally, topic, read, send = self.tally, self.tally.topic, self._read, self._producer.send
        for piece in pieces:
            try:
                value, key, headers, partition, timestamp_ms = read(piece)
            except BadInput as bad:
                await self._producer.flush()
                raise Failure(
                    f"Record {tally.sent + 1} of the input is not valid: {bad}. Those before it were written."
                ) from None
            try:
                delivery = await send(
                    topic,
                    value,
                    key,
                    headers=headers,
                    partition=self._partition if partition is None else partition,
                    timestamp_ms=timestamp_ms,
                )
            except UnknownTopicOrPartition as unknown:
                await self._producer.flush()
                raise Failure(
                    f"Record {tally.sent + 1} of the input cannot be written: {unknown.message} Give the topic as "
                    "many partitions, or leave the field `partition` out. Those before it were written."
                ) from None
            tally.sent += 1
            tally.size_bytes += len(value or b"") + len(key or b"")
            tally.pending.append(delivery)
        tally.settle()
        if len(tally.pending) > _PENDING_MAX:
            await self._producer.flush()
            tally.settle()
