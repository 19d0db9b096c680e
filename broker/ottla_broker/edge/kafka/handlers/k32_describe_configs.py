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
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import ConfigValue
from ottla_core.errors import InvalidRequest, RequestError

_WITHOUT_SETTINGS = frozenset((admin.BROKER_LOGGER, admin.CLIENT_METRICS))


def handle(context: Context, request: Request) -> Reply:
    fields = request.fields()
    synonyms, documentation = fields["include_synonyms"], fields.get("include_documentation", False)
    results = []
    for resource in fields["resources"]:
        kind, name = resource["resource_type"], resource["resource_name"]
        result: dict[str, Any] = {"resource_type": kind, "resource_name": name, "configs": []}
        try:
            values = _wanted(_describe(context, kind, name), resource["configuration_keys"])
        except RequestError as error:
            results.append(result | admin.outcome(context, error))
            continue
        result["configs"] = [
            admin.config_fields(value, synonyms=synonyms, documentation=documentation) for value in values
        ]
        results.append(result | admin.outcome(context, None))
    return {"results": results}


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
