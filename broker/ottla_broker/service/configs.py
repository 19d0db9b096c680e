"""Service for both edges: describes and changes the configuration of topics, brokers and groups. [S]

A topic's effective value comes from the first of: the topic itself, the run-time setting of this broker, the
run-time setting of all brokers, the broker's own file and flags, Kafka's default. Of broker settings only the
defaults for topics and those in `RUNTIME` can change at run time; the others need a restart, and are shown as
read-only. A group has only
its own settings: see `group_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla_broker import group_config
from ottla_broker.config import SETTINGS, BrokerConfig
from ottla_broker.controller.caretaker import CareConfig
from ottla_broker.controller.command import Command
from ottla_broker.controller.commands.alter_broker_config import AlterBrokerConfig
from ottla_broker.controller.commands.alter_group_config import AlterGroupConfig
from ottla_broker.controller.commands.alter_topic_config import AlterTopicConfig
from ottla_broker.controller.config_edits import (
    RUNTIME,
    SERVER_NAMES,
    Edit,
    broker_edit,
    group_edit,
    replacement,
    topic_edit,
)
from ottla_broker.controller.names import no_such_topic
from ottla_broker.inert_config import InertSetting
from ottla_broker.listeners import listeners_of
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.requests import ConfigChange, ConfigValue
from ottla_broker.service.controller_calls import ControllerCalls
from ottla_broker.setting import Address
from ottla_broker.topic_config import Definition, TopicConfig, definitions
from ottla_core.errors import InvalidGroupId, InvalidRequest

#: Name of the run-time settings of all brokers.
ALL_BROKERS = ""

#: Shown with the addresses in use, not as they were set.
_LISTENER_SETTINGS = (
    "listeners",
    "advertised.listeners",
    "grpc.listeners",
    "advertised.grpc.listeners",
    "listener.security.protocol.map",
)

#: Kafka's configuration requests have no timeout; this is the default of its clients.
_ALTER_TIMEOUT_S = 30.0
#: The name is part of a key that every broker keeps in memory.
_GROUP_CHARACTERS_MAX = 1_000
#: A client that connected while the broker's address did not exist tries again after 30 s, librdkafka's default. Until
#: then, that client would not reach the partitions that this broker leads.
_CONNECT_PATIENCE_S = 35.0


def broker_defaults(config: BrokerConfig, image: ClusterImage) -> dict[str, str]:
    """Effective broker defaults of topic settings, by their broker names."""
    own = image.broker_configs.get(str(config.process.broker_id), {})
    return {**config.topic_defaults, **image.broker_configs.get(ALL_BROKERS, {}), **own}


def care_config(config: BrokerConfig) -> CareConfig:
    """Settings of the caretaker on this broker."""
    ttl_s = config.etcd.session_timeout_ms / 1000
    interval_s = config.topics.rebalance_interval_s if config.topics.rebalance_enabled else 0
    grace_s = min(max(3 * ttl_s, _CONNECT_PATIENCE_S), interval_s)
    return CareConfig(
        ttl_s=ttl_s,
        rebalance_interval_s=interval_s,
        rebalance_grace_s=grace_s,
        moves_max=config.replication.moves_max,
    )


class ConfigService:
    def __init__(self, config: BrokerConfig, metadata: Metadata, controller: ControllerCalls) -> None:
        self._config = config
        self._metadata = metadata
        self._controller = controller

    async def _execute(self, command: Command[None]) -> None:
        await self._controller.execute(command, timeout_s=_ALTER_TIMEOUT_S)

    # ------------------------------------------------------------------ topics

    def describe_topic(self, name: str) -> list[ConfigValue]:
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            raise no_such_topic(name)
        return self.describe_new_topic(topic.config)

    def describe_new_topic(self, own: Mapping[str, str]) -> list[ConfigValue]:
        """All settings of a topic for which these are set, whether it exists or not."""
        return [self._topic_value(d, own) for d in definitions()]

    def _topic_value(self, setting: Definition, own: Mapping[str, str]) -> ConfigValue:
        levels: list[tuple[str, str | None, str]] = []
        if setting.name in own:
            levels.append((setting.name, own[setting.name], "topic"))
        levels += self._server_levels(setting)
        _, value, source = levels[0]
        return ConfigValue(
            setting.name, value, source, setting.type, setting.documentation, synonyms=tuple(levels)
        )

    def _server_levels(self, setting: Definition) -> list[tuple[str, str | None, str]]:
        image, levels = self._metadata.image, list[tuple[str, str | None, str]]()
        for values, source in (
            (image.broker_configs.get(str(self._config.process.broker_id), {}), "dynamic-broker"),
            (image.broker_configs.get(ALL_BROKERS, {}), "dynamic-default-broker"),
            (self._config.topic_defaults, "static-broker"),
        ):
            found = setting.from_server(values)
            if found is not None:
                levels.append((*found, source))
        levels.append((setting.server_default_name or setting.name, setting.default, "default"))
        return levels

    async def alter_topic(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        self._check_topic(name, topic_edit(changes))
        if not validate_only:
            await self._execute(AlterTopicConfig(name, edits=tuple(changes)))

    async def replace_topic(self, name: str, values: Mapping[str, str], *, validate_only: bool) -> None:
        """Replace all settings of the topic: a setting that is left out returns to its default."""
        self._check_topic(name, replacement(values))
        if not validate_only:
            await self._execute(AlterTopicConfig(name, values=values))

    def _check_topic(self, name: str, edit: Edit) -> None:
        """Refuse what the controller would refuse, as far as this broker knows."""
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            raise no_such_topic(name)
        TopicConfig.validate(edit(topic.config), broker_defaults(self._config, self._metadata.image))

    # ------------------------------------------------------------------ brokers

    def describe_broker(self, broker_id: int | None) -> list[ConfigValue]:
        """All settings of this broker, or with None only the run-time settings of all brokers."""
        image = self._metadata.image
        if broker_id is None:
            return [
                ConfigValue(name, value, "dynamic-default-broker", d.type, d.documentation)
                for name, value in sorted(image.broker_configs.get(ALL_BROKERS, {}).items())
                if (d := SERVER_NAMES.get(name) or RUNTIME.get(name)) is not None
            ]
        if broker_id != self._config.process.broker_id:
            raise InvalidRequest(
                f"Broker {self._config.process.broker_id} cannot describe broker {broker_id}: ask that one."
            )
        at_run_time = self._runtime_values(image)
        elsewhere = {*_LISTENER_SETTINGS, *(value.name for value in at_run_time)}
        values = [self._static_value(name) for name in SETTINGS if name not in elsewhere]
        values += self._listener_values(image)
        values += at_run_time
        for setting in definitions():
            name, value, source = (levels := self._server_levels(setting))[0]
            values.append(
                ConfigValue(name, value, source, setting.type, setting.documentation, synonyms=tuple(levels))
            )
        return sorted(values, key=lambda v: v.name)

    def _static_value(self, name: str) -> ConfigValue:
        setting = SETTINGS[name]
        given = self._config.static.get(name)
        value, source = (setting.default, "default") if given is None else (given, "static-broker")
        return ConfigValue(
            name,
            value,
            source,
            "string",
            setting.doc,
            read_only=name not in RUNTIME,
            synonyms=((name, value, source),),
        )

    def _listener_values(self, image: ClusterImage) -> list[ConfigValue]:
        """The lists of listeners with their bound ports, also if they come from kafka.listener: Kafka's tools ask."""
        registered = image.brokers.get(self._config.process.broker_id)
        values: dict[str, list[str]] = {name: [] for name in _LISTENER_SETTINGS}
        sources = set()
        for each in listeners_of(self._config):
            prefix = {"kafka": "", "grpc": "grpc."}.get(each.protocol)
            if prefix is None:
                continue
            endpoint = registered.endpoint(each.protocol, each.name) if registered is not None else None
            bound = Address(each.bind.host, each.bind.port or (endpoint.port if endpoint is not None else 0))
            values[f"{prefix}listeners"].append(f"{each.name}://{bound}")
            values["listener.security.protocol.map"].append(f"{each.name}:{each.security}")
            if endpoint is not None:
                advertised = f"{each.name}://{Address(endpoint.host, endpoint.port)}"
                values[f"advertised.{prefix}listeners"].append(advertised)
            if each.setting in self._config.static:
                sources.add(prefix)
        return [
            ConfigValue(
                name,
                value := ",".join(found),
                source := "static-broker"
                if name in self._config.static or ("grpc." if "grpc." in name else "") in sources
                else "default",
                SETTINGS[name].kind.type,
                SETTINGS[name].doc,
                read_only=True,
                synonyms=((name, value, source),),
            )
            for name, found in values.items()
        ]

    def _runtime_values(self, image: ClusterImage) -> list[ConfigValue]:
        own = image.broker_configs.get(str(self._config.process.broker_id), {})
        for_all = image.broker_configs.get(ALL_BROKERS, {})
        values = []
        for setting in RUNTIME.values():
            if setting.name in own:
                values.append(_runtime_value(setting, own[setting.name], "dynamic-broker"))
            elif setting.name in for_all:
                values.append(_runtime_value(setting, for_all[setting.name], "dynamic-default-broker"))
        return values

    async def alter_broker(
        self, broker_id: int | None, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> None:
        key = ALL_BROKERS if broker_id is None else str(broker_id)
        values = broker_edit(changes)(self._metadata.image.broker_configs.get(key, {}))
        TopicConfig.resolve({}, {**self._config.topic_defaults, **values})
        if not validate_only:
            await self._execute(AlterBrokerConfig(key, tuple(changes)))

    # ------------------------------------------------------------------ groups

    def describe_group(self, group: str) -> list[ConfigValue]:
        """All settings of a group, whether it exists or not; settings that are not set have no value."""
        _check_group(group)
        own = self._metadata.image.group_configs.get(group, {})
        return [
            ConfigValue(
                setting.name,
                own.get(setting.name),
                source := "group" if setting.name in own else "default",
                setting.type,
                setting.documentation,
                synonyms=((setting.name, own.get(setting.name), source),),
            )
            for setting in group_config.definitions()
        ]

    async def alter_group(self, group: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        self._check_group_settings(group, group_edit(changes))
        if not validate_only:
            await self._execute(AlterGroupConfig(group, edits=tuple(changes)))

    async def replace_group(self, group: str, values: Mapping[str, str], *, validate_only: bool) -> None:
        """Replace all settings of the group."""
        self._check_group_settings(group, replacement(values))
        if not validate_only:
            await self._execute(AlterGroupConfig(group, values=values))

    def _check_group_settings(self, group: str, edit: Edit) -> None:
        _check_group(group)
        made = edit(self._metadata.image.group_configs.get(group, {}))
        groups = self._config.groups
        group_config.GroupSettings.of(made).check_session(
            groups.session_timeout_min_ms, groups.session_timeout_max_ms
        )


def _runtime_value(setting: Definition | InertSetting, value: str, source: str) -> ConfigValue:
    synonyms = ((setting.name, value, source), (setting.name, setting.default, "default"))
    return ConfigValue(setting.name, value, source, setting.type, setting.documentation, synonyms=synonyms)


def _check_group(group: str) -> None:
    if not 0 < len(group) <= _GROUP_CHARACTERS_MAX:
        raise InvalidGroupId(
            f"Give a group id of at most {_GROUP_CHARACTERS_MAX} characters: there are no settings for all groups."
        )
