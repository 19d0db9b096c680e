"""Moves, elections, brokers: Alter or Describe on the cluster. [S]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla_broker.acl import Operation
from ottla_broker.controller.commands.move_partitions import Move
from ottla_broker.requests import PartitionResult
from ottla_broker.service.access import Access
from ottla_broker.service.cluster import BrokerLoad, ClusterService, OngoingMove
from ottla_broker.service.log_dirs import DescribedDir, DirTarget, LogDirService
from ottla_broker.service.replica_sizes import BrokerSizes, Wanted
from ottla_core.errors import RequestError


class GuardedCluster:
    __slots__ = ("_access", "_service")

    def __init__(self, service: ClusterService, access: Access) -> None:
        self._service = service
        self._access = access

    async def move(
        self, moves: Sequence[Move], *, keep_replication_factor: bool = False, timeout_s: float
    ) -> list[PartitionResult]:
        self._access.check_cluster(Operation.ALTER)
        return await self._service.move(
            moves, keep_replication_factor=keep_replication_factor, timeout_s=timeout_s
        )

    async def elect(
        self, partitions: Mapping[str, Sequence[int]] | None, *, unclean: bool, timeout_s: float
    ) -> list[PartitionResult]:
        self._access.check_cluster(Operation.ALTER)
        return await self._service.elect(partitions, unclean=unclean, timeout_s=timeout_s)

    async def cordon(self, broker: int, *, cordoned: bool, timeout_s: float) -> None:
        self._access.check_cluster(Operation.ALTER)
        await self._service.cordon(broker, cordoned=cordoned, timeout_s=timeout_s)

    async def unregister(self, broker: int, *, timeout_s: float) -> None:
        self._access.check_cluster(Operation.ALTER)
        await self._service.unregister(broker, timeout_s=timeout_s)

    async def moves(self, wanted: Wanted = None) -> list[OngoingMove]:
        self._access.check_cluster(Operation.DESCRIBE)
        return await self._service.moves(wanted)

    async def loads(self, *, sizes: bool) -> list[BrokerLoad]:
        self._access.check_cluster(Operation.DESCRIBE)
        return await self._service.loads(sizes=sizes)

    async def replica_sizes(self, wanted: Wanted = None) -> dict[int, BrokerSizes | None]:
        self._access.check_cluster(Operation.DESCRIBE)
        return await self._service.replica_sizes(wanted)

    async def log_dirs(self, wanted: Wanted = None) -> dict[int, list[DescribedDir] | None]:
        self._access.check_cluster(Operation.DESCRIBE)
        return await self._service.log_dirs(wanted)

    async def alter_log_dirs(
        self, targets: Mapping[int, Sequence[DirTarget]]
    ) -> dict[int, list[RequestError | None]]:
        self._access.check_cluster(Operation.ALTER)
        return await self._service.alter_log_dirs(targets)


class GuardedLogDirs:
    __slots__ = ("_access", "_service")

    def __init__(self, service: LogDirService, access: Access) -> None:
        self._service = service
        self._access = access

    async def describe(self, wanted: Wanted) -> list[DescribedDir]:
        self._access.check_cluster(Operation.DESCRIBE)
        return await self._service.describe(wanted)

    async def alter(self, targets: Sequence[DirTarget]) -> list[RequestError | None]:
        self._access.check_cluster(Operation.ALTER)
        return await self._service.alter(targets)
