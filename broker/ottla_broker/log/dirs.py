"""All log directories of a broker, and the logs in them. [S]

Opened once at start, before anything is served; then asked by the partition host for logs by topic id, and by
housekeeping for checkpoints. A directory that fails takes only its own partitions offline.

Order of a clean stop: every log is closed and synced, then the checkpoints are written, then the marker. Order of a
start: the marker is removed first (D1 in `dir_files`). So a marker is there only if all it says is true.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from uuid import UUID

from ottla_broker.log.checkpoint import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    SCRUB_OFFSETS,
    Offsets,
)
from ottla_broker.log.dir_files import Folder, ForeignDirectory, LogDir
from ottla_broker.log.dir_moves import Departure, DirMoves
from ottla_broker.log.log import Log
from ottla_broker.log.properties import DirectoryIdentity
from ottla_broker.log.recovery import CleanStop
from ottla_broker.log.renewing import rewrite_unsynced
from ottla_broker.metrics import LogProbe
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import CorruptMessage, KafkaStorageError
from ottla_core.ids import TopicPartition
from ottla_core.ports.chance import Chance
from ottla_core.ports.disk import Disk, FolderLock
from ottla_core.records.structure import RECORDS_PER_TURN

#: Where Linux says which boot this is. Read through the Disk port, so that a simulated machine has none.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_REVISION = "metadata-revision"


class LogDirs:
    def __init__(
        self,
        disk: Disk,
        paths: Sequence[str],
        *,
        broker_id: int,
        chance: Chance,
        probe: LogProbe | None = None,
        records_per_turn: int = RECORDS_PER_TURN,
    ) -> None:
        """`records_per_turn`: of clients' batches, checked in one turn of the event loop."""
        self._records_per_turn = records_per_turn
        self.dirs = [LogDir(disk, path.rstrip("/") or "/") for path in paths]
        #: How far this broker has followed the metadata store (design rule 18): its recoveries, and the revision.
        self.history = (0, 0)
        #: How far each compacted log has been cleaned; kept in a checkpoint like the other marks.
        self.cleaner_offsets: Offsets = {}
        #: How far the scrubber has come in each log, in the round that is under way; kept likewise.
        self.scrub_offsets: Offsets = {}
        self._disk = disk
        self._broker_id = broker_id
        self._chance = chance
        self._probe = probe or LogProbe()
        self._logs: dict[TopicPartition, Log] = {}
        #: Scanned after a dirty stop, and not asked for yet; or found to be damaged.
        self._recovered: dict[TopicPartition, Log | Exception] = {}
        #: How each log was closed by a clean stop; None for one that was broken before.
        self._closed: dict[TopicPartition, CleanStop | Exception | None] = {}
        self._dir_of: dict[TopicPartition, LogDir] = {}
        #: (due, path) of folders that wait for their removal.
        self._doomed: list[tuple[int, str]] = []
        self._created_in: dict[str, None] = {}
        self._locks: list[FolderLock] = []
        #: Partitions that are moved to another of the directories.
        self.moves = DirMoves(self, disk, chance)

    def open(self, *, now_ms: int) -> None:
        """Read all directories, and scan the logs of those that were not stopped cleanly. Blocks.

        `ForeignDirectory` if one is not ours; `OSError` only if none can be used.
        """
        try:
            self._read_all(now_ms)
        except BaseException:
            self.abandon()
            raise

    def _read_all(self, now_ms: int) -> None:
        boot_id = self._boot_id()
        for log_dir in self.dirs:
            with self._or_offline(log_dir):
                self._lock(log_dir)
                log_dir.open(self._broker_id, boot_id)
        for log_dir in self.online:
            with self._or_offline(log_dir):
                self._find_folders(log_dir)
        for log_dir in self.online:
            with self._or_offline(log_dir):
                self._read_marks(log_dir)
                self._recover(log_dir, now_ms)
        self.moves.resume()
        if not self.online:
            raise OSError(
                errno.EIO, f"none of the log directories can be used: {[d.error for d in self.dirs]}"
            )
        clusters = {d.identity.cluster_id for d in self.dirs if d.identity is not None}
        if len(clusters) > 1:
            raise ForeignDirectory(f"The log directories belong to different clusters: {sorted(clusters)}.")

    @contextmanager
    def _or_offline(self, log_dir: LogDir) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fail(log_dir, error)

    def _find_folders(self, log_dir: LogDir) -> None:
        """A broker that died at the end of a move between directories has left two folders of one partition: see
        `dir_moves`."""
        for tp, folder in list(log_dir.folders.items()):
            other = self._dir_of.setdefault(tp, log_dir)
            if other is log_dir:
                continue
            if other.folders[tp].topic_id != folder.topic_id or folder.topic_id is None:
                continue
            loser = other
            if log_dir.move_count(folder.path) > other.move_count(other.folders[tp].path):
                self._dir_of[tp] = log_dir
            else:
                loser = log_dir
            self._guard(loser, partial(self._forget_copy, loser, tp))

    def _forget_copy(self, log_dir: LogDir, tp: TopicPartition) -> None:
        self._doomed.append((0, log_dir.doom(tp, self._chance.uuid())))
        self._disk.sync_dir(log_dir.path)

    def _lock(self, log_dir: LogDir) -> None:
        """Before anything is read: two processes on one directory would both believe that it is theirs."""
        self._disk.make_dirs(log_dir.path)
        try:
            self._locks.append(self._disk.lock(log_dir.path))
        except BlockingIOError:
            raise ForeignDirectory(
                f"{log_dir.path} is used by another process: a broker that still runs? Stop that one first."
            ) from None

    def abandon(self) -> None:
        """Let others have the directories, as they are: what a killed process does."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def _boot_id(self) -> bytes:
        try:
            return self._disk.read_file(_BOOT_ID).strip()
        except OSError:
            return b""

    def _read_marks(self, log_dir: LogDir) -> None:
        self.cleaner_offsets |= log_dir.read_offsets(CLEANER_OFFSETS)
        self.scrub_offsets |= log_dir.read_offsets(SCRUB_OFFSETS)
        try:
            revision, *recoveries = map(int, self._disk.read_file(f"{log_dir.path}/{_REVISION}").split())
            self.history = max(self.history, (recoveries[0] if recoveries else 0, revision))
        except (FileNotFoundError, ValueError):
            pass  # Never written, or torn: the next checkpoint writes it again.

    def _recover(self, log_dir: LogDir, now_ms: int) -> None:
        """Before the broker registers, so that the cluster is told about a directory that turns out to be torn."""
        for tp, folder in log_dir.folders.items():
            if folder.topic_id is not None and not self._is_unchanged(log_dir, tp, folder):
                try:
                    self._recovered[tp] = self._load(log_dir, tp, TopicConfig(), now_ms)
                except CorruptMessage as error:
                    # Below the recovery point, so not from a crash: this partition is damaged, the disk need not be.
                    self._probe.corruptions += 1
                    self._recovered[tp] = error

    def _is_unchanged(self, log_dir: LogDir, tp: TopicPartition, folder: Folder) -> bool:
        """Whether a log was closed cleanly and its segments are still those of that moment."""
        facts = log_dir.clean.get(tp)
        return facts is not None and facts.matches(self._disk, folder.path, self._disk.list(folder.path))

    @property
    def cluster_id(self) -> str:
        """The cluster that the directories belong to; "" if they are all new."""
        return next((d.identity.cluster_id for d in self.dirs if d.identity is not None), "")

    def note_admitted(self) -> None:
        """The cluster knows which directories are torn, and no longer counts on them: from now on they are whole."""
        for log_dir in self.online:
            self._guard(log_dir, log_dir.note_boot)

    def join_cluster(self, cluster_id: str) -> None:
        """Give new directories their identity. `ForeignDirectory` if one belongs to another cluster."""
        for log_dir in self.online:
            identity = DirectoryIdentity(cluster_id, self._broker_id, self._chance.uuid())
            try:
                self._guard(log_dir, partial(log_dir.join, identity))
            except ForeignDirectory:
                self.abandon()
                raise

    @property
    def ids(self) -> tuple[UUID, ...]:
        """Directory ids of those that work."""
        return tuple(d.identity.directory_id for d in self.online if d.identity is not None)

    @property
    def torn(self) -> tuple[UUID, ...]:
        """Those of them whose logs may lack their tail."""
        return tuple(d.identity.directory_id for d in self.online if d.identity is not None and d.is_torn)

    # ------------------------------------------------------------------ logs

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """Every log that is open."""
        return self._logs

    @property
    def online(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if log_dir.error is None]

    @property
    def offline(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if log_dir.error is not None]

    def folders(self) -> Iterator[tuple[TopicPartition, Folder]]:
        """Every partition folder in a directory that works, open or not."""
        for log_dir in self.online:
            yield from list(log_dir.folders.items())

    def high_watermark(self, tp: TopicPartition) -> int | None:
        """What the last checkpoint said; None if it said nothing."""
        log_dir = self._dir_of.get(tp)
        return None if log_dir is None else log_dir.high_watermarks.get(tp)

    def get_or_create(
        self, tp: TopicPartition, topic_id: UUID, config: TopicConfig, *, now_ms: int, new: bool = False
    ) -> Log:
        """The log of this topic id: opened if it exists, else created in the directory with the fewest.

        `OSError` if its directory is offline. While a directory could not be read at start, a partition that is not
        found may be in there: then none is made, unless the caller knows that it is `new`.
        """
        log = self._logs.get(tp)
        if log is not None:
            return log
        log_dir = self._dir_of.get(tp)
        if log_dir is not None and log_dir.error is not None:
            raise OSError(errno.EIO, f"{log_dir.path} is offline: {log_dir.error}")
        if log_dir is not None and log_dir.folders[tp].topic_id != topic_id:
            self._set_aside(log_dir, tp)
            log_dir = None
        if log_dir is None:
            if not new:
                self._refuse_if_blind(tp)
            log_dir = self.moves.preferred_dir(tp) or self._roomiest()
            self._make(log_dir, tp, topic_id)
        return self._open(log_dir, tp, config, now_ms)

    def _set_aside(self, log_dir: LogDir, tp: TopicPartition) -> None:
        recovered = self._recovered.pop(tp, None)
        if isinstance(recovered, Log):
            recovered.close(clean=False)
        del self._dir_of[tp]
        self._guard(log_dir, partial(log_dir.set_aside, tp, self._chance.uuid()))

    def set_aside_damaged(self, tp: TopicPartition) -> bool:
        """Take a log out of the way that is too damaged to be opened; its files stay. False if it is not that."""
        if not isinstance(self._recovered.get(tp), CorruptMessage):
            return False
        self._set_aside(self._dir_of[tp], tp)
        return True

    def _refuse_if_blind(self, tp: TopicPartition) -> None:
        for log_dir in self.dirs:
            if not log_dir.is_known:
                raise OSError(errno.EIO, f"{tp} may be in {log_dir.path}, which is offline: {log_dir.error}")

    def _roomiest(self) -> LogDir:
        online = self.online
        if not online:
            raise OSError(errno.EIO, "all log directories are offline")
        return min(online, key=lambda log_dir: len(log_dir.folders))

    def _make(self, log_dir: LogDir, tp: TopicPartition, topic_id: UUID) -> None:
        self._guard(log_dir, lambda: log_dir.make_folder(tp, topic_id))
        self._dir_of[tp] = log_dir
        self._created_in[log_dir.path] = None

    def _open(self, log_dir: LogDir, tp: TopicPartition, config: TopicConfig, now_ms: int) -> Log:
        log = self._recovered.pop(tp, None)
        try:
            if isinstance(log, Exception):
                raise log
            if log is None:
                log = self._load(log_dir, tp, config, now_ms)
        except CorruptMessage as error:
            if error is not log:
                self._probe.corruptions += 1  # Else it was counted when it was found.
            self._recovered[tp] = error
            raise OSError(errno.EIO, f"the log of {tp} is damaged: {error}") from error
        except OSError as error:
            self.fail(log_dir, error)
            raise
        log.update_config(config)
        log.on_broken = partial(self._fail_dir_of, tp)
        log.on_cut = partial(self._note_cut, tp)
        self._logs[tp] = log
        return log

    def _fail_dir_of(self, tp: TopicPartition, error: Exception) -> None:
        self.fail(self._dir_of[tp], error)

    def _note_cut(self, tp: TopicPartition, end_offset: int) -> None:
        """The log was truncated: records after that offset count as neither cleaned nor scrubbed."""
        self.moves.note_cut(tp, end_offset)
        for offsets in (self.cleaner_offsets, self.scrub_offsets):
            if offsets.get(tp, 0) > end_offset:
                offsets[tp] = end_offset

    def _load(self, log_dir: LogDir, tp: TopicPartition, config: TopicConfig, now_ms: int) -> Log:
        facts, point = log_dir.clean.pop(tp, None), log_dir.recovery_points.get(tp, 0)
        if log_dir.has_failed:
            rewrite_unsynced(self._disk, log_dir.folders[tp].path, point)
        log = Log.open(
            self._disk,
            log_dir.folders[tp].path,
            config,
            clean=facts is not None,
            recovery_point=point,
            log_start=log_dir.log_starts.get(tp, 0),
            now_ms=now_ms,
            facts=facts,
            probe=self._probe,
            on_damage=log_dir.note_damage,
            records_per_turn=self._records_per_turn,
        )
        log.mark_checkpointed(max(log.recovery_point, point))
        return log

    def sync_created(self) -> None:
        """Make the folders that were created since the last call survive a power loss."""
        created, self._created_in = self._created_in, {}
        failure: OSError | None = None
        for log_dir in self.online:
            if log_dir.path in created:
                try:
                    self._guard(log_dir, partial(self._disk.sync_dir, log_dir.path))
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure

    def remove(self, tp: TopicPartition, topic_id: UUID, *, now_ms: int) -> None:
        """Take a partition out; its files go after file.delete.delay.ms. Another topic's of the same name stays."""
        log_dir = self._dir_of.get(tp)
        if log_dir is None or log_dir.folders[tp].topic_id != topic_id:
            return
        self.moves.drop(tp)
        log = self._logs.pop(tp, None)
        self.cleaner_offsets.pop(tp, None)
        self.scrub_offsets.pop(tp, None)
        recovered = self._recovered.pop(tp, None)
        if isinstance(recovered, Log):
            log = recovered
        delay_ms = TopicConfig().file_delete_delay_ms
        if log is not None:
            log.on_broken = log.on_cut = None
            delay_ms = log.config.file_delete_delay_ms
            log.close(clean=False)
        del self._dir_of[tp]
        if log_dir.error is None:
            self._guard(
                log_dir,
                lambda: self._doomed.append((now_ms + delay_ms, log_dir.doom(tp, self._chance.uuid()))),
            )

    # ------------------------------------------------------------------ moves between directories

    def dir_of(self, tp: TopicPartition) -> LogDir | None:
        return self._dir_of.get(tp)

    def take_over(self, tp: TopicPartition, target: LogDir, future: str, copy: Log) -> Departure:
        """M3 of `dir_moves`: the copy becomes the partition's log. Its former folder goes with `depart`."""
        source, log = self._dir_of[tp], self._logs[tp]
        former = source.folders[tp]
        folder = Folder(f"{target.path}/{tp}", former.topic_id)
        self._guard(target, partial(target.arrive, tp, future, folder))
        self._dir_of[tp] = target
        if tp in source.high_watermarks:
            target.high_watermarks[tp] = source.high_watermarks[tp]
        del source.folders[tp]
        source.forget(tp)
        log.take_over(copy, folder.path)
        return Departure(tp, source, target, former.path)

    def depart(self, gone: Departure, now_ms: int) -> None:
        """M4: its name in the new directory is durable, so the former folder may go."""
        if gone.source.error is None:
            tag = self._chance.uuid()
            self._guard(
                gone.source,
                lambda: self._doomed.append((now_ms, gone.source.leave(gone.tp, gone.path, tag))),
            )

    def doom_later(self, path: str) -> None:
        """Remove a folder with the next purge: no start takes it for a partition's."""
        self._doomed.append((0, path))

    def purge_removed(self, now_ms: int) -> None:
        """Remove the folders that are due; those that cannot be, the next time. May block; may run on a thread, beside
        `remove`."""
        failure: OSError | None = None
        for entry in [entry for entry in self._doomed if entry[0] <= now_ms]:
            try:
                self._disk.remove_tree(entry[1])
                self._doomed.remove(entry)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    # ------------------------------------------------------------------ failing

    def fail(self, log_dir: LogDir, error: Exception) -> None:
        """Take a directory offline, with all logs in it."""
        if log_dir.error is not None:
            return
        log_dir.error = error
        log_dir.note_failure()
        for tp, log in list(self._logs.items()):
            if self._dir_of.get(tp) is log_dir:
                log.mark_broken(error)

    def _guard(self, log_dir: LogDir, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            self.fail(log_dir, error)
            raise

    # ------------------------------------------------------------------ checkpoints

    def checkpoint_work(
        self, high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> Callable[[], None]:
        """Checkpoint recovery points, start offsets and high watermarks; the blocking part is returned as a function.

        It never raises: a directory that cannot be written to goes offline, with its logs.
        """
        for tp, log in self._logs.items():
            log_dir = self._dir_of[tp]
            if log_dir.error is None:
                log.mark_checkpointed(log.recovery_point)
                log_dir.recovery_points[tp] = log.recovery_point
                log_dir.log_starts[tp] = log.start_offset
                if high_watermarks is not None and tp in high_watermarks:
                    log_dir.high_watermarks[tp] = high_watermarks[tp]
        jobs = [(log_dir, self._checkpoints(log_dir), log_dir.topic_ids()) for log_dir in self.online]
        recoveries, revision = self.history
        history = f"{revision} {recoveries}".encode()

        def work() -> None:
            for log_dir, files, ids in jobs:
                try:
                    for name, offsets in files:
                        log_dir.write_offsets(name, offsets)
                    log_dir.write_ids(ids)
                    self._disk.write_file(f"{log_dir.path}/{_REVISION}", history)
                except OSError as error:
                    self.fail(log_dir, error)

        return work

    def _checkpoints(self, log_dir: LogDir) -> list[tuple[str, Offsets]]:
        """Copies, because the originals go on changing while a thread writes these."""
        return [
            (RECOVERY_POINTS, dict(log_dir.recovery_points)),
            # As in Kafka, without logs that start at zero, which are most.
            (LOG_STARTS, {tp: offset for tp, offset in log_dir.log_starts.items() if offset}),
            (HIGH_WATERMARKS, dict(log_dir.high_watermarks)),
            (CLEANER_OFFSETS, {tp: o for tp, o in self.cleaner_offsets.items() if tp in log_dir.folders}),
            (SCRUB_OFFSETS, {tp: o for tp, o in self.scrub_offsets.items() if tp in log_dir.folders}),
        ]

    def closing(self, shares: int) -> list[Callable[[], None]]:
        """The first part of a clean stop: work that closes all logs, in shares that may run side by side, because the
        fsyncs of different files overlap."""
        left = {tp: log for tp, log in self._recovered.items() if isinstance(log, Log)}
        self._logs.update(left)
        logs = list(self._logs.items())
        return [partial(self._close_logs, logs[share::shares]) for share in range(shares)]

    def _close_logs(self, logs: Sequence[tuple[TopicPartition, Log]]) -> None:
        for tp, log in logs:
            log.on_broken = None
            try:
                facts = log.clean_stop() if log.broken is None else None
                log.close()
                self._closed[tp] = facts
            except (KafkaStorageError, CorruptMessage, OSError) as error:
                self._closed[tp] = error

    def close(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """A clean stop, or the rest of it after `closing`. A directory in which anything fails gets no marker, but a
        note of the failure (D5 in `dir_files`): the page cache may show what a failed fsync has not written."""
        if not self._closed:
            for work in self.closing(1):
                work()
        for tp, closed in self._closed.items():
            log_dir = self._dir_of[tp]
            if isinstance(closed, CleanStop):
                log_dir.clean[tp] = closed
            elif closed is not None and log_dir.error is None:
                log_dir.error = closed
                log_dir.note_failure()
        self._closed.clear()
        self.checkpoint_work(high_watermarks)()
        for log_dir in self.online:
            try:
                log_dir.write_clean_stop()
            except OSError as error:
                log_dir.error = error
        self._logs.clear()
        self.abandon()


__all__ = ["ForeignDirectory", "LogDir", "LogDirs"]
