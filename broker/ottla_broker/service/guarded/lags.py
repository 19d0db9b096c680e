"""Lag of groups: Describe on the group, and only topics that the caller may describe. [S]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla_broker.acl import Operation
from ottla_broker.service.access import GROUP, TOPIC, Access
from ottla_broker.service.group_lag import GroupLags, Lag
from ottla_core.ids import TopicPartition


class GuardedLags:
    __slots__ = ("_access", "_service")

    def __init__(self, service: GroupLags, access: Access) -> None:
        self._service = service
        self._access = access

    async def of(
        self, group: str, committed: Mapping[TopicPartition, int], topics: Iterable[str] = ()
    ) -> list[Lag]:
        self._access.check(Operation.DESCRIBE, GROUP, group)
        allows = self._access.allows
        shown = {tp: at for tp, at in committed.items() if allows(Operation.DESCRIBE, TOPIC, tp.topic)}
        return await self._service.of(
            group, shown, [each for each in topics if allows(Operation.DESCRIBE, TOPIC, each)]
        )

    def ms(self, lag: Lag) -> int | None:
        return self._service.ms(lag)
