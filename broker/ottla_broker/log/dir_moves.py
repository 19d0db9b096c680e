"""Partitions that are moved from one log directory of a broker to another: which, and how far. [S]

Asked by the service for administrators (`request`), carried out by `partition.dir_mover`, owned by `LogDirs`. As in
Kafka, a copy grows in a folder of its own (`<topic>-<partition>.<id>-future`), and takes the partition's name when it
has everything. What a start finds after a death at any moment:

* M1: while it is copied, the copy is in a `-future` folder. A start removes that and begins the move again: the former
  folder has everything.
* M2: before it takes over, the copy is durable to its end, with its number of moves (`move-count`): one more than that
  of the folder it was made from.
* M3: it takes the partition's name by one rename. From now on it is written to, and the former folder is not. A start
  that finds both goes by the number of moves, and removes the other. If a power loss undoes the rename, what was
  written since is lost with it: none of it was acknowledged as flushed, because the first flush makes the name durable.
* M4: the former folder is renamed for removal only when the new name is durable: one of the two is always there.

A truncation of the log during the copy is noted (`note_cut`) and made in the copy before it goes on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from ottla_broker.log.dir_files import LogDir
from ottla_core.errors import InvalidRequest, KafkaStorageError, LogDirNotFound, ReplicaNotAvailable
from ottla_core.ids import TopicPartition
from ottla_core.ports.chance import Chance
from ottla_core.ports.disk import Disk

if TYPE_CHECKING:
    from ottla_broker.log.dirs import LogDirs
    from ottla_broker.log.log import Log

#: Directories that are remembered for partitions that do not exist here yet.
_PREFERRED_MAX = 100_000


class Departure(NamedTuple):
    """A partition's former folder, which nothing uses any more."""

    tp: TopicPartition
    source: LogDir
    target: LogDir
    path: str


class DirMove:
    """One partition on its way to another directory."""

    __slots__ = ("copy", "cut_to", "is_over", "path", "target", "topic_id", "tp")

    def __init__(self, tp: TopicPartition, topic_id: UUID, target: LogDir, path: str) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.target = target
        #: The `-future` folder.
        self.path = path
        #: None until copying has begun.
        self.copy: Log | None = None
        #: The copy has to be truncated to this offset, before anything else.
        self.cut_to: int | None = None
        #: Cancelled, failed or done.
        self.is_over = False


class DirMoves:
    def __init__(self, dirs: LogDirs, disk: Disk, chance: Chance) -> None:
        #: In the order of the requests.
        self.under_way: dict[TopicPartition, DirMove] = {}
        #: Compaction is copying this log, so moving it has to wait; it leaves out those that move.
        self.compacting: TopicPartition | None = None
        self._preferred: dict[TopicPartition, str] = {}
        self._dirs = dirs
        self._disk = disk
        self._chance = chance

    # ------------------------------------------------------------------ requests

    def request(self, tp: TopicPartition, path: str, *, size_bytes: int = 0, free_bytes: int = -1) -> None:
        """Move a partition of this broker to the directory, or, if it is there, stay. RequestError if that cannot be.

        A partition that is not here yet is created there, when it comes; the answer is `ReplicaNotAvailable`, as in
        Kafka, whose tools ask until it is here.
        """
        target = self._online(path)
        here = self._dirs.dir_of(tp)
        log = self._dirs.logs.get(tp)
        if here is not None and here.error is not None:
            raise KafkaStorageError(f"{here.path}, where {tp} is, is offline: {here.error}")
        moving = self.under_way.get(tp)
        if moving is not None and moving.target is target:
            return
        if moving is not None:
            self.drop(tp)
        if here is target:
            return
        if here is None or log is None:
            if len(self._preferred) >= _PREFERRED_MAX:
                raise InvalidRequest("Too many directories are chosen for partitions that do not exist yet.")
            self._preferred[tp] = target.path
            raise ReplicaNotAvailable(
                f"This broker has no replica of {tp} yet. If it gets one, it will be in {target.path}."
            )
        if 0 <= free_bytes < size_bytes:
            raise InvalidRequest(
                f"{target.path} has {free_bytes} bytes free, and {tp} has {size_bytes}: make room there first."
            )
        self._begin(tp, here, target)

    def _online(self, path: str) -> LogDir:
        wanted = path.rstrip("/") or "/"
        target = next((each for each in self._dirs.dirs if each.path == wanted), None)
        if target is None:
            known = ", ".join(each.path for each in self._dirs.dirs)
            raise LogDirNotFound(f"{path!r} is no log directory of this broker; it has {known}.")
        if target.error is not None:
            raise KafkaStorageError(f"{target.path} is offline: {target.error}")
        return target

    def _begin(self, tp: TopicPartition, here: LogDir, target: LogDir) -> None:
        topic_id = here.folders[tp].topic_id
        if topic_id is None:
            raise KafkaStorageError(f"{here.folders[tp].path} has no readable topic id.")
        try:
            path = target.make_future(tp, topic_id, self._chance.uuid())
        except OSError as error:
            self._dirs.fail(target, error)
            raise KafkaStorageError(f"{target.path} is offline: {error}") from error
        self.under_way[tp] = DirMove(tp, topic_id, target, path)

    def preferred_dir(self, tp: TopicPartition) -> LogDir | None:
        """Where a new partition was asked to be."""
        path = self._preferred.pop(tp, None)
        return next((each for each in self._dirs.online if each.path == path), None)

    def resume(self) -> None:
        """At a start: begin again what was under way (M1)."""
        for target in self._dirs.online:
            for tp in target.expected:
                here = self._dirs.dir_of(tp)
                if here is None or here is target or here.error is not None or tp in self.under_way:
                    continue
                if here.folders[tp].topic_id is not None:
                    with suppress(KafkaStorageError):  # The directory is offline now.
                        self._begin(tp, here, target)
            target.expected.clear()

    # ------------------------------------------------------------------ progress

    def note_cut(self, tp: TopicPartition, end_offset: int) -> None:
        """The log was truncated, or restarted."""
        move = self.under_way.get(tp)
        if move is not None:
            move.cut_to = end_offset if move.cut_to is None else min(move.cut_to, end_offset)

    def drop(self, tp: TopicPartition) -> None:
        """Forget the move, and its copy."""
        move = self.under_way.pop(tp, None)
        self._preferred.pop(tp, None)
        if move is not None:
            move.is_over = True
            if move.target.error is None:
                self._dirs.doom_later(move.path)

    def take_over(self, move: DirMove) -> Departure:
        """M3: the copy has everything, durably."""
        copy = move.copy
        if copy is None:
            raise KafkaStorageError(f"{move.tp} is not copied yet.")
        del self.under_way[move.tp]
        move.is_over = True
        return self._dirs.take_over(move.tp, move.target, move.path, copy)
