"""Describes this broker's log directories: sizes, free space, and lag of replicas. [S]

Called by the edges for administrators; sizes of cold segments and of volumes come from the disk, so that part runs
on a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.log import Log
from ottla_broker.partition.host import PartitionHost
from ottla_core.errors import KafkaStorageError
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Disk
from ottla_core.ports.offload import Offload

#: Kafka's value for a volume of unknown size.
UNKNOWN_BYTES = -1


@dataclass(frozen=True, slots=True)
class ReplicaInDir:
    tp: TopicPartition
    size_bytes: int
    #: Committed records that this replica lacks.
    offset_lag: int


@dataclass(frozen=True, slots=True)
class DescribedDir:
    path: str
    error: KafkaStorageError | None = None
    replicas: tuple[ReplicaInDir, ...] = ()
    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES


class LogDirService:
    def __init__(self, dirs: LogDirs, host: PartitionHost, disk: Disk, offload: Offload) -> None:
        self._dirs = dirs
        self._host = host
        self._disk = disk
        self._offload = offload

    async def describe(self, wanted: Mapping[str, Collection[int]] | None) -> list[DescribedDir]:
        """Every directory, with the wanted partitions (None: all) in it."""
        watermarks, logs = self._host.high_watermarks(), self._dirs.logs
        rows: list[tuple[str, list[tuple[TopicPartition, Log, int]] | None]] = []
        for log_dir in self._dirs.dirs:
            if log_dir.error is not None:
                rows.append((log_dir.path, None))
                continue
            held = []
            for tp in log_dir.folders:
                log = logs.get(tp)
                if log is not None and (wanted is None or tp.partition in wanted.get(tp.topic, ())):
                    held.append((tp, log, max(0, watermarks.get(tp, 0) - log.end_offset)))
            rows.append((log_dir.path, held))
        return await self._offload.run(lambda: [self._measure(path, held) for path, held in rows])

    def _measure(self, path: str, held: list[tuple[TopicPartition, Log, int]] | None) -> DescribedDir:
        if held is None:
            return DescribedDir(path, KafkaStorageError())
        try:
            total, usable = self._disk.total_bytes(path), self._disk.free_bytes(path)
        except OSError:
            total = usable = UNKNOWN_BYTES
        replicas = tuple(ReplicaInDir(tp, _size_of(log), lag) for tp, log, lag in held)
        return DescribedDir(path, None, replicas, total, usable)


def _size_of(log: Log) -> int:
    """Size of the current segments; the loop may retire some meanwhile."""
    size = 0
    for segment in list(log.segments):
        try:
            size += segment.size
        except (OSError, ValueError):
            continue
    return size
