"""Group commit: one fsync for all appends of a partition that wait for it. [S]

While an fsync runs on a thread, appends go on and pile up; when it ends, the next one covers all of them.
Topics without flush settings never start one: the kernel writes their pages back, and segments are
flushed when they roll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla_broker.log.log import Log
from ottla_broker.metrics import LogProbe
from ottla_broker.topic_config import LONG_MAX
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload

#: A day: event loops do not support much longer timers, and a day is as good as never.
_TIMER_MS_MAX = 86_400_000


class GroupCommit:
    __slots__ = (
        "_barrier",
        "_clock",
        "_log",
        "_offload",
        "_on_broken",
        "_on_flushed",
        "_probe",
        "_task",
        "_timer",
        "_unflushed",
    )

    def __init__(
        self,
        log: Log,
        offload: Offload,
        clock: Clock,
        probe: LogProbe,
        on_flushed: Callable[[], None],
        on_broken: Callable[[], None],
    ) -> None:
        self._log = log
        self._offload = offload
        self._clock = clock
        self._probe = probe
        self._on_flushed = on_flushed
        self._on_broken = on_broken
        self._task: asyncio.Task[None] | None = None
        #: Records appended since the last flush began.
        self._unflushed = 0
        #: Acknowledgements below this offset wait until the recovery point passes them.
        self._barrier = 0
        self._timer: asyncio.TimerHandle | None = None

    def appended(self, count: int) -> None:
        """Note `count` new records, and begin a flush if the topic's settings ask for one now."""
        log = self._log
        self._unflushed += count
        # Counted from the recovery point: what a flush under way has not made durable yet can still be lost.
        if log.config.flush_before_ack or log.end_offset - log.recovery_point >= log.config.flush_messages:
            self._barrier = log.end_offset
            self._begin()
        elif log.unflushed_roll is not None:
            self._begin()  # A sealed segment is made durable soon: recovery then need not read it again.
        else:
            self._arm()

    def must_wait(self, last_offset: int) -> bool:
        """Whether the acknowledgement of `last_offset` has to wait for a flush."""
        return self._log.recovery_point <= last_offset < self._barrier

    def cut(self, end_offset: int) -> None:
        """The log was truncated: later appends are new, and wait for a flush only if they ask for one."""
        self._barrier = min(self._barrier, end_offset)

    def stop(self) -> None:
        """Start no more flushes; a running one finishes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """One timer from the first unflushed append on: an idle partition costs nothing."""
        flush_ms = self._log.config.flush_ms
        if flush_ms != LONG_MAX and self._timer is None:
            delay_s = min(flush_ms, _TIMER_MS_MAX) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._begin()

    def _begin(self) -> None:
        if self._task is None and self._log.broken is None:
            # Kept in a slot until done: the loop itself holds tasks only weakly.
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        log = self._log
        try:
            while self._unflushed and log.broken is None:
                self._unflushed = 0
                target, began = log.end_offset, self._clock.monotonic()
                try:
                    await self._offload.run(log.flush_work())
                except OSError as error:
                    # After a failed fsync the kernel may have dropped the pages: what is on disk is unknown.
                    log.mark_broken(error)
                    self._on_broken()
                    return
                log.mark_flushed(target)
                self._probe.flushes += 1
                self._probe.flush_seconds.observe(self._clock.monotonic() - began)
                self._on_flushed()
                if self._barrier <= log.recovery_point:
                    return
        finally:
            self._task = None
            if self._unflushed and log.broken is None:
                self._arm()  # They came during the flush and started no timer of their own.
