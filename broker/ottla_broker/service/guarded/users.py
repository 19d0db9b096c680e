"""Credentials of users: Alter or Describe on the cluster. [S]"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_broker.acl import Operation
from ottla_broker.requests import UserResult
from ottla_broker.service.access import Access
from ottla_broker.service.users import Deletion, Upsertion, UserCredentials, UserService


class GuardedUsers:
    __slots__ = ("_access", "_service")

    def __init__(self, service: UserService, access: Access) -> None:
        self._service = service
        self._access = access

    def describe(self, users: Sequence[str] | None) -> list[UserCredentials]:
        self._access.check_cluster(Operation.DESCRIBE)
        return self._service.describe(users)

    async def alter(
        self, upsertions: Sequence[Upsertion], deletions: Sequence[Deletion], *, timeout_s: float
    ) -> list[UserResult]:
        self._access.check_cluster(Operation.ALTER)
        return await self._service.alter(upsertions, deletions, timeout_s=timeout_s)
