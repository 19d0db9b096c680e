"""ACLs: Alter or Describe on the cluster. [S]"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_broker.acl import AclRow, Binding, Operation
from ottla_broker.acl_filter import AclFilter
from ottla_broker.service.access import Access
from ottla_broker.service.acls import AclService
from ottla_core.errors import RequestError


class GuardedAcls:
    __slots__ = ("_access", "_service")

    def __init__(self, service: AclService, access: Access) -> None:
        self._service = service
        self._access = access

    async def create(self, rows: Sequence[AclRow]) -> list[RequestError | None]:
        self._access.check_cluster(Operation.ALTER)
        return await self._service.create(rows)

    def describe(self, wanted: AclFilter) -> list[Binding]:
        self._access.check_cluster(Operation.DESCRIBE)
        return self._service.describe(wanted)

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Binding] | RequestError]:
        self._access.check_cluster(Operation.ALTER)
        return await self._service.delete(filters)
