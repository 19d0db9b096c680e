"""Processes the records of a consumer with several workers, in order per key, and commits completed ones only. [S]

`completed` decides which record may start and what may be committed; this module polls, runs the workers and commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from ottla_client.completed import CompletedOffsets, Run
from ottla_client.consumer import Consumer
from ottla_client.errors import ClientError, CommitFailed
from ottla_client.listener import RebalanceListener
from ottla_client.record import ConsumerRecord
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

log = logging.getLogger(__name__)

#: A plain function runs in a thread, an async one in the event loop.
Handler: TypeAlias = Callable[[ConsumerRecord], Awaitable[Any] | Any]

_POLL_MS = 100


class WorkerPool:
    """Calls `handle(record)` for each record of the topics, several at a time.

    >>> consumer = Consumer("127.0.0.1:9192", group_id="billing", enable_auto_commit=False)
    >>> async with consumer:
    ...     await WorkerPool(consumer, ["orders"], handle, workers=16).run(stop)

    Records with the same key are handled one after the other, in their order; others at the same time. An offset is
    committed when its record and all before it in the partition are completed: each record is handled at least once,
    and after a crash those that were not committed are handled again. Before a partition moves to another member, its
    running records are awaited for up to `drain_timeout_ms` and committed.

    The consumer belongs to the pool while it runs: create it with `enable_auto_commit=False`. An exception of `handle`
    ends `run`, which raises it after it has committed what was completed.

    * `workers`: records that are handled at the same time.
    * `max_pending`: records that are read and not completed; then the pool reads no further ones.
    * `commit_interval_ms`: time between commits.
    """

    def __init__(
        self,
        consumer: Consumer,
        topics: Sequence[str],
        handle: Handler,
        *,
        workers: int = 8,
        max_pending: int = 1000,
        commit_interval_ms: int = 1000,
        drain_timeout_ms: int = 30_000,
    ) -> None:
        if min(workers, max_pending, commit_interval_ms, drain_timeout_ms) < 1:
            raise ValueError(
                "workers, max_pending, commit_interval_ms and drain_timeout_ms must be positive."
            )
        if consumer.commits_automatically:
            raise ValueError(
                "The pool commits completed records itself: create the consumer with enable_auto_commit=False."
            )
        self._consumer = consumer
        self._topics = list(topics)
        self._handle = handle
        self._is_async = inspect.iscoroutinefunction(handle)
        self._workers = workers
        self._max_pending = max_pending
        self._interval_s = commit_interval_ms / 1000
        self._drain_s = drain_timeout_ms / 1000
        self._work = CompletedOffsets()
        self._committed: dict[TopicPartition, int] = {}
        self._commit_due_at = 0.0
        self._tasks: dict[asyncio.Task[None], Run] = {}
        #: Set when a record was completed, so that the next one starts and a drain goes on.
        self._moved = asyncio.Event()
        self._failed: BaseException | None = None
        #: Of its own: asyncio's has six threads on a machine with two cores.
        self._threads = ThreadPoolExecutor(workers, "ottla-worker")  # Starts them as they are needed.

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Until `stop` is set: then running records are awaited, and what is completed is committed."""
        listener = RebalanceListener(on_revoked=self._revoked, on_lost=self._lost)
        self._consumer.subscribe(self._topics, listener)
        try:
            while self._failed is None and not (stop is not None and stop.is_set()):
                await self._turn()
            await self._drained(self._consumer.assignment())
        finally:
            for task in self._tasks:
                task.cancel()
            await self._commit(self._work.commits())
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self._consumer.unsubscribe()
        if self._failed is not None:
            raise self._failed

    async def _turn(self) -> None:
        room = self._max_pending - self._work.pending
        if room > 0:
            self._consumer.resume(*self._consumer.paused())
        else:
            # Polls go on, so that the member stays in its group.
            self._consumer.pause(*self._consumer.assignment())
        waits_ms = _POLL_MS if room > 0 else 0
        self._work.add(await self._consumer.poll(waits_ms, max_records=max(1, room)))
        self._start()
        if room <= 0 and self._tasks:
            await self._any_completed(_POLL_MS / 1000)
        now = asyncio.get_running_loop().time()
        if now >= self._commit_due_at:
            self._commit_due_at = now + self._interval_s
            await self._commit(self._work.commits())

    async def _any_completed(self, timeout_s: float) -> None:
        self._moved.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()

    # ------------------------------------------------------------------ workers

    def _start(self) -> None:
        while self._failed is None and len(self._tasks) < self._workers:
            run = self._work.take()
            if run is None:
                return
            task = asyncio.create_task(self._call(run.record))
            self._tasks[task] = run
            task.add_done_callback(self._ended)

    async def _call(self, record: ConsumerRecord) -> None:
        if self._is_async:
            await self._handle(record)
            return
        result = await asyncio.get_running_loop().run_in_executor(self._threads, self._handle, record)
        if inspect.isawaitable(result):
            await result

    def _ended(self, task: asyncio.Task[None]) -> None:
        run = self._tasks.pop(task)
        if not task.cancelled():
            error = task.exception()
            if error is None:
                self._work.complete(run)
            elif self._failed is None:
                self._failed = error
        self._moved.set()
        self._start()

    # ------------------------------------------------------------------ commits and rebalances

    async def _drained(self, tps: Iterable[TopicPartition]) -> None:
        """Start nothing more of these partitions, and wait for what runs."""
        gone = set(tps)
        self._work.forget_waiting(gone)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._drain_s
        while running := [run for run in self._tasks.values() if run.tp in gone]:
            if clock() >= deadline:
                log.warning(
                    "%d records were not completed in time; they will be handled again.", len(running)
                )
                return
            await self._any_completed(deadline - clock())

    async def _revoked(self, tps: Sequence[TopicPartition]) -> None:
        await self._drained(tps)
        await self._commit(self._work.commits(tps))
        self._lost(tps)

    def _lost(self, tps: Sequence[TopicPartition]) -> None:
        self._work.drop(tps)
        for tp in tps:
            self._committed.pop(tp, None)

    async def _commit(self, offsets: Any) -> None:
        changed = {tp: offset for tp, offset in offsets.items() if self._committed.get(tp) != offset}
        if not changed:
            return
        try:
            await self._consumer.commit(changed)
            self._committed.update(changed)
        except CommitFailed as error:
            log.warning("%s", error)
        except (ClientError, RequestError) as error:
            log.warning("Offsets were not committed, and are tried again: %s", error)
