"""ListConfigResources (74), versions 0-1: resources that have, or could have, settings. [S]

Versions: 0 asks for client metrics only, of which there are none; 1 for the given types, or all of them
(KIP-1142).
"""

from __future__ import annotations

from ottla_broker.acl import Operation
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request
from ottla_core.errors import UnsupportedVersion

_ALL_TYPES = (admin.TOPIC, admin.BROKER, admin.BROKER_LOGGER, admin.CLIENT_METRICS, admin.GROUP)


def handle(context: Context, request: Request) -> Reply:
    context.services.access.check_cluster(Operation.DESCRIBE_CONFIGS)
    image = context.services.image
    types = request.fields().get("resource_types", [admin.CLIENT_METRICS]) or _ALL_TYPES
    if not set(types) <= set(_ALL_TYPES):
        return {"error_code": context.failed(UnsupportedVersion())}
    broker_names = [str(broker_id) for broker_id in image.brokers]
    names = {
        admin.TOPIC: list(image.topics),
        admin.BROKER: broker_names,
        admin.BROKER_LOGGER: broker_names,
        admin.GROUP: list(image.group_configs),
    }
    return {
        "error_code": 0,
        "config_resources": [
            {"resource_type": kind, "resource_name": name}
            for kind in _ALL_TYPES
            if kind in types
            for name in names.get(kind, ())
        ],
    }
