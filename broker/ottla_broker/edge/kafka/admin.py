"""Helpers of the administrative handlers: resource types, config values as fields, deadlines. [S]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ottla_broker.acl import CLUSTER_NAME, Operation, ResourceType
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_broker.requests import WAIT_S_MAX, ConfigValue
from ottla_broker.service.throttling import Mutations
from ottla_core.errors import InvalidRequest, RequestError

#: Kafka's ConfigResource.Type.
TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32

#: Kafka's ConfigSource, by Ottla's names.
_SOURCES = {
    "topic": 1,
    "dynamic-broker": 2,
    "dynamic-default-broker": 3,
    "static-broker": 4,
    "default": 5,
    "group": 8,
}
#: Kafka's ConfigType, by Ottla's names.
_TYPES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
_DEFAULT_SOURCE = _SOURCES["default"]

#: librdkafka asks with a deadline of zero when its caller does not want to wait. The change itself still
#: takes a moment, and an answer that says what became of it is worth that moment.
_TIMEOUT_S_MIN = 1.0

#: For authorized operations, which are bit fields over Kafka's AclOperation: "not asked for", as Kafka spells it.
NO_OPERATIONS = -(1 << 31)


def cluster_operations(context: Context) -> int:
    """None without the right to describe the cluster."""
    access = context.services.access
    allowed = access.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    return allowed if allowed >> Operation.DESCRIBE & 1 else 0


def mutations(context: Context, request: Request, strict_from: int) -> Mutations:
    """The caller's quota of partitions created and deleted, strict from this version on (KIP-599)."""
    return context.services.throttling.mutations(context.caller, strict=request.version >= strict_from)


def throttle_fields(quota: Mutations) -> dict[str, int]:
    """The wait; the connection takes no further requests until it is over."""
    return {"throttle_time": max(1, round(quota.wait_s * 1000))} if quota.wait_s else {}


def timeout_s(timeout_ms: int) -> float:
    """The client's timeout, within bounds."""
    return min(max(timeout_ms / 1000, _TIMEOUT_S_MIN), WAIT_S_MAX)


def outcome(context: Context, error: RequestError | None) -> dict[str, Any]:
    """The error fields of one item, refusals counted."""
    if error is not None:
        context.failed(error)
    return error_fields(error)


def repeated(names: Iterable[Any]) -> set[Any]:
    """Those that occur more than once: of two orders for one thing, neither is carried out."""
    return {name for name, count in Counter(names).items() if count > 1}


async def alter_each(
    context: Context,
    fields: dict[str, Any],
    alter: Callable[[int, str, list[dict[str, Any]]], Awaitable[None]],
) -> Reply:
    """Both forms of AlterConfigs: each resource by itself, given to `alter` as type, name and what is asked of it."""
    responses = []
    twice = repeated((r["resource_type"], r["resource_name"]) for r in fields["resources"])
    for resource in fields["resources"]:
        kind, name = resource["resource_type"], resource["resource_name"]
        error: RequestError | None = None
        try:
            if (kind, name) in twice:
                raise InvalidRequest(f"{name!r} is named twice in one request.")
            await alter(kind, name, resource["configs"])
        except RequestError as refused:
            error = refused
        responses.append({"resource_type": kind, "resource_name": name} | outcome(context, error))
    return {"responses": responses}


def broker_id(resource_name: str) -> int | None:
    """The broker that a resource names; None for the one that stands for all brokers."""
    if not resource_name:
        return None
    if not resource_name.isascii() or not resource_name.isdigit():
        raise InvalidRequest(
            f"A broker resource is named by its id or by an empty name, not by {resource_name!r}."
        )
    return int(resource_name)


def config_fields(value: ConfigValue, *, synonyms: bool, documentation: bool) -> dict[str, Any]:
    """One setting as DescribeConfigs and CreateTopics show it. Secrets are named, never shown."""
    shown = None if value.sensitive else value.value
    listed = value.synonyms if synonyms else ()
    return {
        "name": value.name,
        "value": shown,
        "read_only": value.read_only,
        "config_source": _SOURCES[value.source],
        "is_default": _SOURCES[value.source] == _DEFAULT_SOURCE,
        "is_sensitive": value.sensitive,
        "synonyms": [
            {"name": name, "value": None if value.sensitive else text, "source": _SOURCES[source]}
            for name, text, source in listed
        ],
        "config_type": _TYPES.get(value.type, 0),
        "documentation": value.documentation if documentation else None,
    }
