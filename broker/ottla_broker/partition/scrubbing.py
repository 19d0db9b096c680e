"""The scrubber: reads all closed segments periodically, and records damage. [S]

Bits also rot where no client reads, and a replica must be whole when another one fails. So each broker
reads the closed segments of all its replicas, as leader and follower, at a bounded rate, one after the other. Damage is
counted, and repaired from another replica (`partition.mending`). The active segment is left out:
it was written recently, and repeated reads of it are checked (`service.reread_check`).

A checkpoint keeps the progress of a round, so that a restart continues it. `housekeeping` runs it as a separate
task.
"""

from __future__ import annotations

import errno
from itertools import pairwise

import structlog

from ottla_broker.config import LogDirsConfig
from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.log import Log
from ottla_broker.log.scan import BadBatch
from ottla_broker.log.scrub import SegmentScrub
from ottla_broker.log.segment import Segment
from ottla_broker.metrics import LogProbe
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import Partition
from ottla_core.errors import CorruptMessage
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload

_log = structlog.get_logger("ottla.scrubbing")

#: Delay after a start, when a broker has other things to read.
FIRST_ROUND_S = 60.0
#: Pause after each step, as a multiple of its duration: the scrubber uses at most a twentieth of a slow disk or a core.
_REST_FACTOR = 19


class Scrubber:
    def __init__(
        self,
        host: PartitionHost,
        dirs: LogDirs,
        config: LogDirsConfig,
        clock: Clock,
        offload: Offload,
        probe: LogProbe,
    ) -> None:
        self._host = host
        self._dirs = dirs
        self._rate = config.scrub_bytes_per_s
        self._interval_s = config.scrub_interval_ms / 1000
        self._clock = clock
        self._offload = offload
        self._probe = probe

    async def run(self) -> None:
        """Round after round, until cancelled."""
        if not self._rate:
            return
        due = self._clock.monotonic() + min(FIRST_ROUND_S, self._interval_s)
        while True:
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
            due = self._clock.monotonic() + self._interval_s
            for partition in list(self._host):
                await self._scrub(partition)
            self._dirs.scrub_offsets.clear()
            self._probe.scrub_rounds += 1

    async def _scrub(self, partition: Partition) -> None:
        log, tp = partition.log, partition.tp
        offset = self._dirs.scrub_offsets.get(tp, 0)
        limit = log.segments[-1].base_offset  # What is closed later is for the next round.
        while offset < limit and log.broken is None and not log.is_closed:
            found = _closed_at(log, offset, limit)
            if found is None:
                return
            segment, end_offset = found
            await self._scrub_segment(partition, segment, offset, end_offset)
            if log.is_closed:
                return  # Deleted; another partition may have its name.
            offset = self._dirs.scrub_offsets[tp] = end_offset

    async def _scrub_segment(
        self, partition: Partition, segment: Segment, offset: int, end_offset: int
    ) -> None:
        if segment.damage is not None:
            return
        log, scrub = partition.log, SegmentScrub(segment, offset, end_offset)
        while not (log.is_closed or scrub.is_outdated):
            began = self._clock.monotonic()
            try:
                checked = await self._offload.run(scrub.step)
            except (BadBatch, CorruptMessage) as damage:
                self._note(partition, scrub, segment, str(damage))
                return
            except ValueError:
                return  # The file was closed: the segment was removed.
            except OSError as error:
                # An unreadable sector is damage of one file. Other errors are left to regular readers of the file.
                if error.errno == errno.EIO:
                    self._note(partition, scrub, segment, f"unreadable bytes ({error})")
                return
            if not checked:
                return
            self._probe.scrubbed_bytes += checked
            if not (log.is_closed or scrub.is_outdated):
                self._dirs.scrub_offsets[partition.tp] = scrub.next_offset
            took_s = self._clock.monotonic() - began
            await self._clock.sleep(max(checked / self._rate, took_s * _REST_FACTOR))

    def _note(self, partition: Partition, scrub: SegmentScrub, segment: Segment, damage: str) -> None:
        if partition.log.is_closed or scrub.is_outdated:
            return  # It was truncated or removed while it was read.
        self._probe.scrub_damaged += 1
        partition.log.note_damage(segment.base_offset, damage)
        _log.error("scrubber found damage", partition=str(partition.tp), segment=repr(segment), damage=damage)


def _closed_at(log: Log, offset: int, limit: int) -> tuple[Segment, int] | None:
    """The closed segment that holds `offset` or comes next, and where it ends."""
    segments = log.segments
    for segment, following in pairwise(segments):
        if offset < following.base_offset <= limit:
            return segment, following.base_offset
    return None
