"""IncrementalAlterConfigs (44), versions 0-1: change single settings (KIP-339). [S]

A setting can be set, deleted (back to its default), appended to or subtracted from, if it is a list. All
changes of one resource happen together or not at all; resources are independent of each other.

Versions: 1 is the flexible form; nothing else changed.
Left out: log levels (broker loggers) are refused, they follow the broker's own configuration.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_broker.requests import ConfigChange
from ottla_core.errors import InvalidRequest

#: Kafka's AlterConfigOp.OpType, by its number on the wire.
_KINDS = ("set", "delete", "append", "subtract")


def handle(context: Context, request: Request) -> Awaitable[Reply]:
    return _alter(context, request.fields())


async def _alter(context: Context, fields: dict[str, Any]) -> Reply:
    async def alter(kind: int, name: str, configs: list[dict[str, Any]]) -> None:
        await _change(context, kind, name, _changes(configs), fields["validate_only"])

    return await admin.alter_each(context, fields, alter)


def _changes(configs: list[dict[str, Any]]) -> list[ConfigChange]:
    twice = admin.repeated(config["name"] for config in configs)
    if twice:
        raise InvalidRequest(f"Changed twice in one request: {', '.join(sorted(twice))}.")
    changes = []
    for config in configs:
        name, operation, value = config["name"], config["config_operation"], config["value"]
        if not 0 <= operation < len(_KINDS):
            raise InvalidRequest(
                f"{operation} is not an operation on {name}; those are 0 to {len(_KINDS) - 1}."
            )
        if value is None and _KINDS[operation] != "delete":
            raise InvalidRequest(f"{name} has no value to {_KINDS[operation]}.")
        changes.append(ConfigChange(_KINDS[operation], name, value))
    return changes


async def _change(
    context: Context, kind: int, name: str, changes: list[ConfigChange], validate_only: bool
) -> None:
    configs = context.services.configs
    if kind == admin.TOPIC:
        await configs.alter_topic(name, changes, validate_only=validate_only)
    elif kind == admin.BROKER:
        await configs.alter_broker(admin.broker_id(name), changes, validate_only=validate_only)
    elif kind == admin.GROUP:
        await configs.alter_group(name, changes, validate_only=validate_only)
    elif kind == admin.BROKER_LOGGER:
        raise InvalidRequest(
            "Log levels are not changed through the protocol; set them in the broker's configuration."
        )
    else:
        raise InvalidRequest(f"Resources of type {kind} have no settings.")
