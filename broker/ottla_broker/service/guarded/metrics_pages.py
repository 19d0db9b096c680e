"""Metrics name topics, groups and clients of all: Describe on the cluster. [S]"""

from __future__ import annotations

from collections.abc import Collection

from ottla_broker.acl import Operation
from ottla_broker.service.access import Access
from ottla_broker.service.metrics_pages import MetricsPages


class GuardedMetricsPages:
    __slots__ = ("_access", "_service")

    def __init__(self, service: MetricsPages, access: Access) -> None:
        self._service = service
        self._access = access

    async def page(self, names: Collection[str] = ()) -> bytes:
        self._access.check_cluster(Operation.DESCRIBE)
        return await self._service.page(names)
