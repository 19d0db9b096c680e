"""Settings: DescribeConfigs and AlterConfigs on the topic, the group, or the cluster for brokers. [S]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla_broker.acl import Operation
from ottla_broker.requests import ConfigChange, ConfigValue
from ottla_broker.service.access import GROUP, TOPIC, Access
from ottla_broker.service.configs import ConfigService


class GuardedConfigs:
    __slots__ = ("_access", "_service")

    def __init__(self, service: ConfigService, access: Access) -> None:
        self._service = service
        self._access = access

    def describe_topic(self, name: str) -> list[ConfigValue]:
        self._access.check(Operation.DESCRIBE_CONFIGS, TOPIC, name)
        return self._service.describe_topic(name)

    def describe_new_topic(self, own: Mapping[str, str]) -> list[ConfigValue]:
        """Of a topic that the caller has just created: the handler checks whether it may see them."""
        return self._service.describe_new_topic(own)

    def describe_broker(self, broker_id: int | None) -> list[ConfigValue]:
        self._access.check_cluster(Operation.DESCRIBE_CONFIGS)
        return self._service.describe_broker(broker_id)

    def describe_group(self, group: str) -> list[ConfigValue]:
        self._access.check(Operation.DESCRIBE_CONFIGS, GROUP, group)
        return self._service.describe_group(group)

    async def alter_topic(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        self._access.check(Operation.ALTER_CONFIGS, TOPIC, name)
        await self._service.alter_topic(name, changes, validate_only=validate_only)

    async def replace_topic(self, name: str, values: Mapping[str, str], *, validate_only: bool) -> None:
        self._access.check(Operation.ALTER_CONFIGS, TOPIC, name)
        await self._service.replace_topic(name, values, validate_only=validate_only)

    async def alter_broker(
        self, broker_id: int | None, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> None:
        self._access.check_cluster(Operation.ALTER_CONFIGS)
        await self._service.alter_broker(broker_id, changes, validate_only=validate_only)

    async def alter_group(self, group: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        self._access.check(Operation.ALTER_CONFIGS, GROUP, group)
        await self._service.alter_group(group, changes, validate_only=validate_only)

    async def replace_group(self, group: str, values: Mapping[str, str], *, validate_only: bool) -> None:
        self._access.check(Operation.ALTER_CONFIGS, GROUP, group)
        await self._service.replace_group(group, values, validate_only=validate_only)
