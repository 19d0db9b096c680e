"""DescribeConfigs (32), versions 1-4: settings of topics, groups and this broker, and where each comes from. [S]

Broker resources are named by number; the empty name stands for what was set at run time for all brokers.
Loggers and client metrics have no settings here, so they have an empty list: a tool that shows everything
goes on.

Versions: 1 says the source and lists synonyms (KIP-226); 3 types and documentation (KIP-569).
"""

from __future__ import annotations

from typing import Any

from ottla_broker.acl import Operation
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.encode import Lazy
from ottla_broker.edge.kafka.request import Context, Reply, Request, Steps
from ottla_broker.requests import ConfigValue, Maybe
from ottla_broker.steps import begun
from ottla_core.errors import InvalidRequest, RequestError

#: A resource has dozens of settings, also if the request asks for one of them.
_RESOURCE_COST = 32
_WITHOUT_SETTINGS = frozenset((admin.BROKER_LOGGER, admin.CLIENT_METRICS))


def handle(context: Context, request: Request) -> Maybe[Reply | Steps] | Steps:
    return begun(_describe_all(context, request))


def _describe_all(context: Context, request: Request) -> Steps:
    fields = yield from request.fields_in_steps()
    synonyms, documentation = fields["include_synonyms"], fields.get("include_documentation", False)

    def entry(value: ConfigValue) -> dict[str, Any]:
        return admin.config_fields(value, synonyms=synonyms, documentation=documentation)

    def result(resource: dict[str, Any]) -> dict[str, Any]:
        kind, name = resource["resource_type"], resource["resource_name"]
        made: dict[str, Any] = {"resource_type": kind, "resource_name": name, "configs": []}
        try:
            values = _wanted(_describe(context, kind, name), resource["configuration_keys"])
        except RequestError as error:
            return made | admin.outcome(context, error)
        made["configs"] = Lazy(entry, values)
        return made | admin.outcome(context, None)

    return {"results": Lazy(result, fields["resources"], cost=_RESOURCE_COST)}


def _describe(context: Context, kind: int, name: str) -> list[ConfigValue]:
    configs = context.services.configs
    if kind == admin.TOPIC:
        return configs.describe_topic(name)
    if kind == admin.BROKER:
        return configs.describe_broker(admin.broker_id(name))
    if kind == admin.GROUP:
        return configs.describe_group(name)
    if kind in _WITHOUT_SETTINGS:
        context.services.access.check_cluster(Operation.DESCRIBE_CONFIGS)
        return []
    raise InvalidRequest(f"Resources of type {kind} are not supported.")


def _wanted(values: list[ConfigValue], names: list[str] | None) -> list[ConfigValue]:
    """Null asks for all of them, and so does an empty list: Kafka takes it that way."""
    if not names:
        return values
    chosen = frozenset(names)
    return [value for value in values if value.name in chosen]
