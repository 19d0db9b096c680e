"""Periodic work for all partitions: retention, compaction, checkpoints, expiry. [S]

One task for all partitions and all chores, so that ten thousand idle partitions cost a few milliseconds a minute.
Chores that touch every partition yield to the event loop between small groups of them. Compaction is a separate
task, since one round may take an hour: it runs on a thread, one log at a time, at a bounded rate. So is the
scrubber. Logs are truncated, lose segments and are deleted meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from ottla_broker.config import LogDirsConfig
from ottla_broker.log.cleaner import Cleaning
from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.log import Log
from ottla_broker.metrics import LogProbe
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import Partition
from ottla_broker.partition.scrubbing import Scrubber
from ottla_broker.partition.stale_transactions import Coordinators, StaleTransactions
from ottla_core.errors import CorruptMessage, RequestError
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload

_log = structlog.get_logger("ottla.housekeeping")

#: Partitions checked before other work gets its turn: about a tenth of a millisecond.
_HANDFUL = 100
#: How often files of removed segments and topics are deleted.
_PURGE_INTERVAL_S = 10.0


@dataclass(slots=True)
class _Chore:
    interval_s: float
    work: Callable[[], Awaitable[None]]
    due: float


class Housekeeping:
    def __init__(
        self,
        host: PartitionHost,
        dirs: LogDirs,
        config: LogDirsConfig,
        clock: Clock,
        offload: Offload,
        probe: LogProbe,
        coordinators: Coordinators | None = None,
    ) -> None:
        """`coordinators` are those of transactions."""
        self._host = host
        self._dirs = dirs
        self._config = config
        self._clock = clock
        self._offload = offload
        self._probe = probe
        stale_transactions = StaleTransactions(host, config, clock, probe, coordinators)
        now = clock.monotonic()
        wanted: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (config.retention_check_interval_ms / 1000, self._retention),
            (config.checkpoint_interval_ms / 1000, self._checkpoint),
            (config.producer_expiration_check_ms / 1000, self._expire_producers),
            (_PURGE_INTERVAL_S, self._purge),
        ]
        self._chores = [_Chore(interval_s, work, now + interval_s) for interval_s, work in wanted]
        # Apart from the others, because it waits for other brokers.
        check_s = config.transaction_check_ms / 1000
        self._transactions = [_Chore(check_s, stale_transactions.check, now + check_s)]
        rest_s = config.cleaner_backoff_ms / 1000
        self._scrubber = Scrubber(host, dirs, config, clock, offload, probe)
        self._compaction = [_Chore(rest_s, self._compact, now + rest_s)] if config.cleaner_enabled else []

    async def run(self) -> None:
        """Do each chore at its interval, until cancelled."""
        groups = (self._chores, self._transactions, self._compaction)
        chores = [self._do(chores) for chores in groups if chores]
        await asyncio.gather(*chores, self._scrubber.run())

    async def _do(self, chores: list[_Chore]) -> None:
        while True:
            chore = min(chores, key=lambda c: c.due)
            await self._clock.sleep(max(0.0, chore.due - self._clock.monotonic()))
            await chore.work()
            chore.due = self._clock.monotonic() + chore.interval_s

    async def _each(self, work: Callable[[Partition], object], *, learn: bool = False) -> None:
        for number, partition in enumerate(self._host):
            if number % _HANDFUL == _HANDFUL - 1:
                await self._clock.sleep(0)
            if learn:
                await self._learn(partition)
            try:
                if partition.log.broken is None and not partition.log.is_closed:
                    work(partition)
            except RequestError as error:
                # The log has marked itself broken; its directory is notified, the other partitions continue.
                _log.error("housekeeping failed", partition=str(partition.tp), error=str(error))

    async def _learn(self, partition: Partition) -> None:
        """Load the facts about sealed segments, which are unknown after a start."""
        log = partition.log
        work = None if log.broken is not None or log.is_closed else log.learn_work()
        for damage in () if work is None else await self._offload.run(work):
            self._probe.corruptions += 1
            _log.error("damaged segment found", partition=str(partition.tp), error=damage)

    # ------------------------------------------------------------------ the chores

    async def _retention(self) -> None:
        now_ms = self._clock.wall_ms()

        def remove_old(partition: Partition) -> None:
            removed = partition.log.housekeeping(now_ms, partition.stable_offset())
            self._probe.segments_deleted += removed

        await self._each(remove_old, learn=True)

    async def _purge(self) -> None:
        now_ms = self._clock.wall_ms()
        for partition in list(self._host):
            log = partition.log
            work = log.purge_work(now_ms)
            if work is not None:
                try:
                    await self._offload.run(work)
                except OSError as error:
                    log.mark_broken(error)
        try:
            await self._offload.run(lambda: self._dirs.purge_removed(now_ms))
        except OSError as error:
            _log.error("deleted log not removed yet; retrying", error=str(error))

    async def _checkpoint(self) -> None:
        await self._offload.run(self._dirs.checkpoint_work(self._host.high_watermarks()))

    async def _expire_producers(self) -> None:
        now_ms, after_ms = self._clock.wall_ms(), self._config.producer_expiration_ms
        await self._each(lambda partition: partition.log.producers.expire(now_ms, after_ms))

    async def _compact(self) -> None:
        moves = self._dirs.moves
        for partition in self._host:
            if not partition.log.config.compacts:
                continue
            moves.compacting = partition.tp
            try:
                if partition.tp not in moves.under_way:
                    await self._compact_one(partition)
            finally:
                moves.compacting = None

    async def _compact_one(self, partition: Partition) -> None:
        await self._learn(partition)
        try:
            cleaning = Cleaning.begin(
                partition.log,
                now_ms=self._clock.wall_ms(),
                first_dirty_offset=self._dirs.cleaner_offsets.get(partition.tp, partition.log.start_offset),
                stable_offset=partition.stable_offset(),
                key_map_bytes=self._config.cleaner_buffer_bytes,
            )
        except (OSError, RequestError) as error:
            self._note_failed(partition, error)
            return
        if cleaning is not None:
            await self._clean(partition, cleaning)

    def _note_failed(self, partition: Partition, error: Exception) -> None:
        """One damaged log must not end the chores of all others."""
        self._probe.corruptions += isinstance(error, CorruptMessage)
        _log.error("compaction failed", partition=str(partition.tp), error=str(error))

    async def _clean(self, partition: Partition, cleaning: Cleaning) -> None:
        log, rate = partition.log, self._config.cleaner_bytes_per_s
        finished = False
        try:
            moved = 0
            while not log.is_closed and await self._offload.run(cleaning.step):
                total = cleaning.read_bytes + cleaning.written_bytes
                await self._clock.sleep((total - moved) / rate)
                moved = total
            if not log.is_closed:
                await self._swap(log, cleaning)
                self._dirs.cleaner_offsets[partition.tp] = cleaning.end_offset
            finished = not log.is_closed
        except (OSError, RequestError, ValueError) as error:
            # A ValueError: files were closed meanwhile, because the log was truncated or the topic was deleted.
            if not (log.is_closed or cleaning.is_outdated):
                self._note_failed(partition, error)
        finally:
            if not finished:
                log.end_replacement(self._clock.wall_ms())
                await self._offload.run(cleaning.abandon)
        self._probe.compactions += 1
        self._probe.compacted_bytes += cleaning.read_bytes

    async def _swap(self, log: Log, cleaning: Cleaning) -> None:
        for work in cleaning.finish(log, self._clock.wall_ms()):
            try:
                await self._offload.run(work)
            except OSError as error:
                log.mark_broken(error)
                raise
