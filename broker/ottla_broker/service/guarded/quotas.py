"""Quotas: DescribeConfigs or AlterConfigs on the cluster. [S]"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_broker.acl import Operation
from ottla_broker.controller.commands.alter_quotas import QuotaChange
from ottla_broker.quota import Entity
from ottla_broker.service.access import Access
from ottla_broker.service.quotas import NameFilter, QuotaService
from ottla_core.errors import RequestError


class GuardedQuotas:
    __slots__ = ("_access", "_service")

    def __init__(self, service: QuotaService, access: Access) -> None:
        self._service = service
        self._access = access

    def describe(
        self,
        user: NameFilter | None,
        client_id: NameFilter | None,
        ip: NameFilter | None = None,
        *,
        strict: bool,
    ) -> list[tuple[Entity, dict[str, float]]]:
        self._access.check_cluster(Operation.DESCRIBE_CONFIGS)
        return self._service.describe(user, client_id, ip, strict=strict)

    async def alter(
        self, changes: Sequence[QuotaChange], *, validate_only: bool
    ) -> list[RequestError | None]:
        self._access.check_cluster(Operation.ALTER_CONFIGS)
        return await self._service.alter(changes, validate_only=validate_only)
