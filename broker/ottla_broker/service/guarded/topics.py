"""Topics: Create on the cluster or the topic, Delete, Alter. [S]"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from ottla_broker.acl import Operation
from ottla_broker.requests import NewTopic, TopicResult
from ottla_broker.service.access import TOPIC, Access
from ottla_broker.service.topics import Mutations, TopicService


class GuardedTopics:
    __slots__ = ("_access", "_service")

    def __init__(self, service: TopicService, access: Access) -> None:
        self._service = service
        self._access = access

    @property
    def creates_missing(self) -> bool:
        return self._service.creates_missing

    def settling(self, opened_at: float) -> Awaitable[None] | None:
        return self._service.settling(opened_at)

    async def create(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool,
        timeout_s: float,
        mutations: Mutations | None = None,
    ) -> list[TopicResult]:
        refused = {
            each.name: self._access.refusal(Operation.CREATE, TOPIC, each.name)
            for each in topics
            if not self._may_create(each.name)
        }
        allowed = [each for each in topics if each.name not in refused]
        results = [TopicResult(name, error) for name, error in refused.items()]
        if allowed:
            results += await self._service.create(
                allowed, validate_only=validate_only, timeout_s=timeout_s, mutations=mutations
            )
        return results

    def _may_create(self, name: str) -> bool:
        return self._access.may_by_cluster(Operation.CREATE, TOPIC, name)

    async def delete(
        self, names: Sequence[str], *, timeout_s: float, mutations: Mutations | None = None
    ) -> list[TopicResult]:
        allowed, results = [], []
        for name in names:
            if self._access.may(Operation.DELETE, TOPIC, name):
                allowed.append(name)
            else:
                results.append(TopicResult(name, self._access.refusal(Operation.DELETE, TOPIC, name)))
        if allowed:
            results += await self._service.delete(allowed, timeout_s=timeout_s, mutations=mutations)
        return results

    async def grow(
        self,
        name: str,
        total: int,
        assignments: tuple[tuple[int, ...], ...] | None = None,
        *,
        validate_only: bool,
        timeout_s: float,
        mutations: Mutations | None = None,
    ) -> TopicResult:
        if not self._access.may(Operation.ALTER, TOPIC, name):
            return TopicResult(name, self._access.refusal(Operation.ALTER, TOPIC, name))
        return await self._service.grow(
            name,
            total,
            assignments,
            validate_only=validate_only,
            timeout_s=timeout_s,
            mutations=mutations,
        )

    async def ensure(self, names: Sequence[str]) -> None:
        """Topics that the caller may not create stay missing."""
        if not self._service.creates_missing:
            return
        allowed = [name for name in names if self._access.allows(Operation.DESCRIBE, TOPIC, name)]
        allowed = [name for name in allowed if self._may_create(name)]
        if allowed:
            await self._service.ensure(allowed)
