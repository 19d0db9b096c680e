"""This broker's log directories: sizes, free space, lag of replicas, and moves of partitions between them. [S]

Called by the edges for administrators; sizes of cold segments and of volumes come from the disk, so that part runs
on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.log import Log
from ottla_broker.partition.host import PartitionHost
from ottla_core.errors import KafkaStorageError, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Disk
from ottla_core.ports.offload import Offload

#: Kafka's value for a volume of unknown size.
UNKNOWN_BYTES = -1


@dataclass(frozen=True, slots=True)
class ReplicaInDir:
    tp: TopicPartition
    size_bytes: int
    #: Committed records that this replica lacks; of a copy on its way here: records that the log has and it lacks.
    offset_lag: int
    #: A copy that will take the place of the replica in another directory.
    is_future: bool = False


@dataclass(frozen=True, slots=True)
class DescribedDir:
    path: str
    error: KafkaStorageError | None = None
    replicas: tuple[ReplicaInDir, ...] = ()
    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES


class DirTarget(NamedTuple):
    """A partition of a broker, and the directory where it is to be."""

    tp: TopicPartition
    path: str


class LogDirService:
    def __init__(
        self,
        dirs: LogDirs,
        host: PartitionHost,
        disk: Disk,
        offload: Offload,
        *,
        moves_begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`moves_begun` is called after each request to move partitions."""
        self._moves_begun = moves_begun
        self._dirs = dirs
        self._host = host
        self._disk = disk
        self._offload = offload

    async def describe(self, wanted: Mapping[str, Collection[int]] | None) -> list[DescribedDir]:
        """Every directory, with the wanted partitions (None: all) in it."""
        watermarks, logs = self._host.high_watermarks(), self._dirs.logs
        rows: list[tuple[str, list[_Held] | None]] = []
        for log_dir in self._dirs.dirs:
            if log_dir.error is not None:
                rows.append((log_dir.path, None))
                continue
            held = []
            for tp in log_dir.folders:
                log = logs.get(tp)
                if log is not None and (wanted is None or tp.partition in wanted.get(tp.topic, ())):
                    held.append(_Held(tp, log, max(0, watermarks.get(tp, 0) - log.end_offset)))
            for tp, move in self._dirs.moves.under_way.items():
                log = logs.get(tp)
                asked = wanted is None or tp.partition in wanted.get(tp.topic, ())
                if move.target is log_dir and log is not None and asked:
                    copied = 0 if move.copy is None else move.copy.end_offset
                    held.append(_Held(tp, move.copy, max(0, log.end_offset - copied), is_future=True))
            rows.append((log_dir.path, held))
        return await self._offload.run(lambda: [self._measure(path, held) for path, held in rows])

    async def alter(self, targets: Sequence[DirTarget]) -> list[RequestError | None]:
        """Move partitions of this broker to other directories; the outcome of each. Answered when they have begun."""
        # Only directories of this broker are looked at, not those that a client names.
        paths = [each.path for each in self._dirs.dirs if each.error is None]
        logs = {each.tp: log for each in targets if (log := self._dirs.logs.get(each.tp)) is not None}

        def measure() -> tuple[dict[str, int], dict[TopicPartition, int]]:
            return {path: self._free(path) for path in paths}, {tp: _size_of(log) for tp, log in logs.items()}

        free, sizes = await self._offload.run(measure)
        outcomes: list[RequestError | None] = []
        for tp, path in targets:
            try:
                self._dirs.moves.request(
                    tp,
                    path,
                    size_bytes=sizes.get(tp, 0),
                    free_bytes=free.get(path.rstrip("/") or "/", UNKNOWN_BYTES),
                )
                outcomes.append(None)
            except RequestError as error:
                outcomes.append(error)
        self._moves_begun()
        return outcomes

    def _free(self, path: str) -> int:
        try:
            return self._disk.free_bytes(path)
        except OSError:
            return UNKNOWN_BYTES

    def _measure(self, path: str, held: list[_Held] | None) -> DescribedDir:
        if held is None:
            return DescribedDir(path, KafkaStorageError())
        try:
            total, usable = self._disk.total_bytes(path), self._disk.free_bytes(path)
        except OSError:
            total = usable = UNKNOWN_BYTES
        replicas = tuple(
            ReplicaInDir(tp, 0 if log is None else _size_of(log), lag, future)
            for tp, log, lag, future in held
        )
        return DescribedDir(path, None, replicas, total, usable)


class _Held(NamedTuple):
    tp: TopicPartition
    log: Log | None
    lag: int
    is_future: bool = False


def _size_of(log: Log) -> int:
    """Size of the current segments; the loop may retire some meanwhile."""
    size = 0
    for segment in list(log.segments):
        try:
            size += segment.size
        except (OSError, ValueError):
            continue
    return size
