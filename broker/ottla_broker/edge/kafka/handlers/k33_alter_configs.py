"""AlterConfigs (33), versions 0-2: replace the settings of a topic, of a group, or a broker's at run time. [S]

What the request leaves out goes back to its default, which is why Kafka advises IncrementalAlterConfigs
instead; librdkafka and older tools still send this.

Versions: 2 is the flexible form; nothing else changed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import ConfigChange
from ottla_core.errors import InvalidRequest


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _alter(context, request.fields())


async def _alter(context: Context, fields: dict[str, Any]) -> Reply:
    async def alter(kind: int, name: str, configs: list[dict[str, Any]]) -> None:
        await _replace(context, kind, name, _values(configs), fields["validate_only"])

    return await admin.alter_each(context, fields, alter)


def _values(configs: list[dict[str, Any]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for config in configs:
        if config["name"] in values:
            raise InvalidRequest(f"{config['name']} is set twice in one request.")
        if config["value"] is None:
            raise InvalidRequest(f"{config['name']} has no value; leave it out to get its default.")
        values[config["name"]] = config["value"]
    return values


async def _replace(
    context: Context, kind: int, name: str, values: dict[str, str], validate_only: bool
) -> None:
    configs = context.services.configs
    if kind == admin.TOPIC:
        await configs.replace_topic(name, values, validate_only=validate_only)
    elif kind == admin.BROKER:
        broker_id = admin.broker_id(name)
        now = context.services.image.broker_configs.get(name, {})
        changes = [ConfigChange("delete", gone) for gone in now if gone not in values]
        changes += [ConfigChange("set", key, value) for key, value in values.items()]
        await configs.alter_broker(broker_id, changes, validate_only=validate_only)
    elif kind == admin.GROUP:
        await configs.replace_group(name, values, validate_only=validate_only)
    else:
        raise InvalidRequest(f"Resources of type {kind} have no settings.")
