"""A partition while another broker leads it: executes the follower machine's decisions on the log. [S]

The partition creates it when such an epoch begins, and ends it with the epoch or when this broker is elected, before
it leads (rule 10). `FollowClient` passes it sections and asks for its position; it never sends anything itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from ottla_broker.replication import lineage
from ottla_broker.replication.effects import (
    Append,
    FollowerEffect,
    FollowWatermark,
    Ignore,
    Report,
    RestartAt,
    TruncateTo,
)
from ottla_broker.replication.follow_wire import PositionEntry, PositionKind, Section, SectionKind
from ottla_broker.replication.follower import Follower
from ottla_broker.replication.lineage import EpochEnd
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import header_at

if TYPE_CHECKING:
    from ottla_broker.partition.partition import Partition

_log = structlog.get_logger("ottla.replication")


class Following:
    __slots__ = ("_on_flushed", "_partition", "machine")

    def __init__(self, partition: Partition, leader: int, leader_epoch: int) -> None:
        self._partition = partition
        self.machine = Follower(leader, leader_epoch)
        self._on_flushed: Callable[[], None] | None = None

    @property
    def key(self) -> bytes:
        return self._partition.key

    @property
    def leader(self) -> int:
        return self.machine.leader

    def __repr__(self) -> str:
        return f"Following({self._partition.tp}, epoch {self.machine.leader_epoch})"

    def entry(self, says: PositionKind) -> PositionEntry:
        """The current position of this replica (F4)."""
        partition = self._partition
        log = partition.log
        end = log.end_offset
        epoch = lineage.last_epoch(log.epochs.entries, end)
        reported = log.start_offset if says == PositionKind.START else partition.position
        return PositionEntry(self.key, says, self.machine.leader_epoch, epoch, end, reported)

    @property
    def is_throttled(self) -> bool:
        """Whether `follower.replication.throttled.replicas` names this replica."""
        throttled = self._partition.log.config.follower_replication_throttled_replicas
        return throttled.has(self._partition.tp.partition, self._partition.broker_id)

    def when_flushed(self, report: Callable[[], None] | None) -> None:
        """Call `report` on each flush: with flush.before.ack, a flush moves the position."""
        self._on_flushed = report

    def flushed(self) -> None:
        if self._on_flushed is not None:
            self._on_flushed()

    def on_stream(self) -> Report | None:
        return self._do(self.machine.on_stream())

    def on_silence(self) -> Report | None:
        return self._do(self.machine.on_silence())

    def on_section(self, section: Section) -> Report | None:
        """Handle a section from the leader. KafkaStorageError if the disk fails, CorruptMessage if batches are
        damaged."""
        log, machine, epoch = self._partition.log, self.machine, section.leader_epoch
        effects: list[FollowerEffect]
        if section.tells == SectionKind.BATCHES:
            effects = machine.on_batches(
                epoch,
                section.offset,
                len(section.records),
                section.high_watermark,
                section.log_start,
                log.end_offset,
            )
        elif section.tells == SectionKind.DIVERGED:
            leader_end = EpochEnd(section.epoch, section.offset)
            effects = machine.on_divergence(
                epoch, leader_end, section.log_start, log.epochs.entries, log.end_offset
            )
        else:
            effects = machine.on_start(epoch, section.offset, log.end_offset)
        return self._do(effects, section.records, section.log_start)

    # ------------------------------------------------------------------ carrying out

    def _do(self, effects: list[FollowerEffect], records: Buffer = b"", log_start: int = 0) -> Report | None:
        report: Report | None = None
        for effect in effects:
            kind = type(effect)
            if kind is Append:
                self._append(records, log_start)
            elif isinstance(effect, FollowWatermark):
                self._partition.follow_marks(effect.high_watermark, effect.log_start)
            elif isinstance(effect, Report):
                report = effect
            elif isinstance(effect, TruncateTo):
                self._truncate(effect.offset)
            elif isinstance(effect, RestartAt):
                self._restart(effect.offset)
            elif isinstance(effect, Ignore):
                _log.debug("frame ignored", partition=str(self._partition.tp), reason=effect.reason)
        return report

    def _append(self, records: Buffer, log_start: int) -> None:
        partition = self._partition
        log = partition.log
        if log.start_offset == log.end_offset or log.end_offset <= log_start:
            # After DeleteRecords a log may begin in the middle of a batch. All records of this log are deleted, so it
            # can begin there too.
            first = header_at(records).base_offset
            if first < log.end_offset:
                # The batch replaces all that the restart removes, so the high watermark stays valid. A new leader may
                # know a lower one, and a replica's never decreases.
                mark = partition.high_watermark
                self._restart(first)
                info = log.append_as_follower(records, now_ms=partition.wall_ms())
                partition.note_appended(info)
                partition.follow_marks(mark, log.start_offset)
                return
        info = log.append_as_follower(records, now_ms=partition.wall_ms())
        partition.note_appended(info)

    def _truncate(self, offset: int) -> None:
        partition = self._partition
        log = partition.log
        _log.info(
            "log truncated to where it diverges from the leader",
            partition=str(partition.tp),
            epoch=self.machine.leader_epoch,
            end_offset=log.end_offset,
            cut_to=offset,
            high_watermark=partition.high_watermark,
        )
        log.truncate_to(offset, now_ms=partition.wall_ms())
        partition.note_cut()

    def _restart(self, offset: int) -> None:
        partition = self._partition
        _log.info(
            "log restarted at a new start offset",
            partition=str(partition.tp),
            at=offset,
            end_offset=partition.log.end_offset,
        )
        partition.log.restart_at(offset, now_ms=partition.wall_ms())
        partition.note_cut()
