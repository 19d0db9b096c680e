"""Carries out moves of partitions between the log directories of this broker. [S]

One task for all of them; each copies for a while in its turn. Reading, checking and writing are done on a thread, in
slices, at `replica.alter.log.dirs.io.max.bytes.per.second`. What the log does meanwhile (appends, truncations,
retention) the copy does too; only compaction waits. When the copy has nearly everything, the rest of some kilobytes,
one fsync and one rename are done on the loop, between two flushes of the log: see `log.dir_moves` for why each step can
be the last one.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import partial

import structlog

from ottla_broker.log.dir_files import MOVE_COUNT
from ottla_broker.log.dir_moves import Departure, DirMove
from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.log import Log
from ottla_broker.log.reader import LogReader
from ottla_broker.log.reading import NotLoaded
from ottla_broker.log.snapshots import load_snapshot
from ottla_broker.metadata.waiting import wait_for_sign
from ottla_broker.metrics import LogProbe
from ottla_broker.replication.throttle import Throttle
from ottla_core.errors import CorruptMessage, KafkaStorageError, OffsetOutOfRange, RequestError
from ottla_core.ports.clock import Clock
from ottla_core.ports.disk import Buffer, Disk
from ottla_core.ports.offload import Offload
from ottla_core.records.batch import complete_batches, header_at

_log = structlog.get_logger("ottla.log")

#: Copied at once: some milliseconds of a thread. At a low rate less, so that moves take turns.
SLICE_BYTES = 1 << 20
#: Copied of one partition before the next one has its turn.
_ROUND_BYTES = 64 << 20
#: What is copied on the loop at the end: a fraction of a millisecond. Doubled after each attempt that found more, so
#: that a partition that is written to all the time arrives too.
TAIL_BYTES = 64 << 10
_TAIL_BYTES_MAX = 4 << 20
#: Whole batches that fit are at least half of a slice, or one batch: never so few that the tail would begin.
_SLICE_BYTES_MIN = 2 * TAIL_BYTES
#: How long to wait for a running flush to end before the copy goes on.
_QUIET_S = 5.0
_PAUSE_S = 0.1
_IDLE_S = 60.0


class DirMover:
    def __init__(
        self,
        dirs: LogDirs,
        disk: Disk,
        clock: Clock,
        offload: Offload,
        *,
        rate: Callable[[], float | None],
        checkpoint: Callable[[], Callable[[], None]],
    ) -> None:
        """`rate`: bytes per second, None for no limit. `checkpoint` gives the work that writes all checkpoints."""
        self._dirs = dirs
        self._disk = disk
        self._clock = clock
        self._offload = offload
        self._rate = rate
        self._checkpoint = checkpoint
        self._reader = LogReader(offload)
        self._throttle = Throttle()
        self._tails: dict[DirMove, int] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """There is a new move."""
        self._wake.set()

    async def run(self) -> None:
        """Copy whatever is to be moved, until cancelled."""
        moves = self._dirs.moves
        try:
            while True:
                self._wake.clear()
                for move in list(moves.under_way.values()):
                    if move.tp != moves.compacting:
                        await self._advance(move)
                await wait_for_sign(self._wake, self._clock, _PAUSE_S if moves.under_way else _IDLE_S)
        finally:
            for move in moves.under_way.values():
                if move.copy is not None:
                    move.copy.close(clean=False)

    async def _advance(self, move: DirMove) -> None:
        log = self._dirs.logs.get(move.tp)
        if log is None or log.broken is not None or move.target.error is not None:
            self._give_up(move, "a log directory is offline")
            return
        copied = 0
        try:
            await self._pay(move)
            while not move.is_over and copied < _ROUND_BYTES:
                size = await self._copy_some(move, log)
                await self._pay(move)
                if size is None or 0 < size < TAIL_BYTES:  # A log that is written to always has some more.
                    await self._finish(move, log)
                    break
                copied += size
        except OffsetOutOfRange:
            pass  # Retention was faster: the next round begins where the log does.
        except CorruptMessage as error:
            self._give_up(move, f"the log is damaged: {error}")
        except (OSError, ValueError, RequestError) as error:
            self._on_error(move, log, error)
        if move.is_over and move.copy is not None and not move.copy.is_closed:
            move.copy.close(clean=False)

    def _on_error(self, move: DirMove, log: Log, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, KafkaStorageError) else error
        if move.is_over or log.broken is not None:
            self._give_up(move, str(error))
        elif isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            self._give_up(move, f"{move.target.path} is full")
        elif isinstance(cause, OSError):
            self._dirs.fail(move.target, cause)
            self._give_up(move, str(cause))
        else:
            self._give_up(move, repr(error))

    def _give_up(self, move: DirMove, reason: str) -> None:
        self._tails.pop(move, None)
        if self._dirs.moves.under_way.get(move.tp) is move:
            self._dirs.moves.drop(move.tp)
            _log.error("move to another log directory given up", partition=str(move.tp), reason=reason)

    # ------------------------------------------------------------------ copying

    async def _copy_some(self, move: DirMove, log: Log) -> int | None:
        """Copy one slice; None when there is nothing left to copy."""
        copy = move.copy
        if copy is None:
            move.copy = await self._offload.run(partial(self._opened, move, log, self._clock.wall_ms()))
            return 0
        now_ms = self._clock.wall_ms()
        if move.cut_to is not None:
            offset, move.cut_to = move.cut_to, None
            await self._offload.run(partial(copy.truncate_to, offset, now_ms=now_ms))
            return 0
        if copy.end_offset < log.start_offset:
            await self._offload.run(partial(copy.restart_at, log.start_offset, now_ms=now_ms))
            return 0
        if copy.end_offset >= log.end_offset:
            return None
        offset = copy.end_offset
        piece = await self._reader.read(log, offset, self._slice_bytes(), limit_offset=log.end_offset)
        if move.is_over or move.cut_to is not None:
            return 0  # What was read may have been truncated meanwhile.
        if piece is None or piece.damage is not None:
            raise CorruptMessage(f"nothing can be read at offset {offset}: {piece and piece.damage}")
        size = await self._offload.run(partial(self._append, log.path, copy, piece.data, now_ms))
        self._throttle.take(size, self._clock.monotonic())
        return size

    def _slice_bytes(self) -> int:
        rate = self._throttle.rate
        return SLICE_BYTES if rate is None else min(max(rate, _SLICE_BYTES_MIN), SLICE_BYTES)

    async def _pay(self, move: DirMove) -> None:
        """Wait as long as the rate asks for what was copied. A move that ends leaves its debt to the others.

        The rate is read again within each second: at a low one, a slice takes minutes.
        """
        while not move.is_over:
            rate, now = self._rate(), self._clock.monotonic()
            self._throttle.set_rate(None if rate is None else max(1, int(rate)), now)
            wait_s = self._throttle.wait_s(now)
            if wait_s <= 0:
                return
            await self._clock.sleep(wait_s)

    def _opened(self, move: DirMove, log: Log, now_ms: int) -> Log:
        """M2: the number of moves is durable before the copy can take over."""
        count = move.target.move_count(log.path) + 1
        self._disk.write_file(f"{move.path}/{MOVE_COUNT}", str(count).encode())
        return Log.open(self._disk, move.path, log.config, clean=True, now_ms=now_ms, probe=LogProbe())

    def _append(self, source: str, copy: Log, data: Buffer, now_ms: int) -> int:
        """Append the complete batches, with their CRCs checked; return their size. Blocks."""
        end = 0
        for position, header in complete_batches(data):
            end = position + header.size
        if not end:
            return 0
        first = header_at(data).base_offset
        if copy.start_offset == copy.end_offset:
            if first != copy.end_offset:
                copy.restart_at(first, now_ms=now_ms)
            # Of producers whose records are deleted already the log knows more than its batches say.
            known = load_snapshot(self._disk, source, self._disk.list(source), first)
            if known is not None:
                known.end_offset = first
                copy.producers = known
        return copy.append_as_follower(memoryview(data)[:end], now_ms=now_ms).size_bytes

    # ------------------------------------------------------------------ the end of a move

    async def _finish(self, move: DirMove, log: Log) -> None:
        copy = move.copy
        if copy is None:
            return
        copy.epochs.adopt(log.epochs.entries, copy.end_offset)
        upto = copy.end_offset
        await self._offload.run(copy.flush_work())
        copy.mark_flushed(upto)
        quiet, outcome = asyncio.Event(), list[Departure | Exception | None]()

        def attempt() -> None:
            try:
                outcome.append(self._take_over(move, log, copy))
            except (
                RequestError,
                OSError,
                ValueError,
            ) as error:  # Not the problem of the flush that has ended.
                outcome.append(error)
            quiet.set()

        log.between_flushes(attempt)
        if not await wait_for_sign(quiet, self._clock, _QUIET_S):
            log.between_flushes(None)
        elif isinstance(outcome[0], Exception):
            raise outcome[0]
        elif outcome[0] is not None:
            await self._leave(outcome[0])

    def _take_over(self, move: DirMove, log: Log, copy: Log) -> Departure | None:
        """Copy the rest and swap, on the loop; None if that has to wait."""
        limit = self._tails.get(move, TAIL_BYTES)
        if move.is_over or move.cut_to is not None or log.broken is not None or log.is_closed:
            return None
        left = limit
        while copy.end_offset < log.end_offset:
            try:
                extent = log.read(copy.end_offset, left, limit_offset=log.end_offset, wait=False)
            except NotLoaded:
                return None
            data = None if extent is None or extent.size > left else self._reader.cached(extent)
            if data is None or not (size := self._append(log.path, copy, data, self._clock.wall_ms())):
                self._tails[move] = min(2 * limit, _TAIL_BYTES_MAX)
                return None
            left -= size
        if copy.end_offset != log.end_offset:
            return None
        copy.epochs.adopt(log.epochs.entries, copy.end_offset)
        if copy.needs_flush:
            copy.flush()
        self._tails.pop(move, None)
        return self._dirs.moves.take_over(move)

    async def _leave(self, gone: Departure) -> None:
        """M4, and marks for the next start."""
        _log.info("partition moved to another log directory", partition=str(gone.tp), to=gone.target.path)
        try:
            await self._offload.run(partial(self._disk.sync_dir, gone.target.path))
        except OSError as error:
            self._dirs.fail(gone.target, error)
            return
        self._dirs.depart(gone, self._clock.wall_ms())
        await self._offload.run(self._checkpoint())
