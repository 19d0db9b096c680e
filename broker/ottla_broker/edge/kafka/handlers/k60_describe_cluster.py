"""DescribeCluster (60), versions 0-2: the cluster's id, controller and brokers on the listener asked. [S]

Versions: 1 lets a client say whether it means brokers or controllers (KIP-919): Ottla's controllers are brokers
and have no address of their own, so the latter is refused. 2 can include fenced brokers (KIP-1073): a
broker without a lease is not in the picture, so there are none.
"""

from __future__ import annotations

from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields

_BROKERS = 1
_MISMATCHED_ENDPOINT_TYPE = 114


def handle(context: Context, request: Request) -> Reply:
    fields = request.fields()
    image = context.services.image
    asked = fields.get("endpoint_type", _BROKERS)
    if asked != _BROKERS:
        sentence = f"This is an endpoint of brokers (type {_BROKERS}); it has no endpoints of type {asked}."
        return {
            "error_code": _MISMATCHED_ENDPOINT_TYPE,
            "error_message": sentence,
            "cluster_id": image.cluster_id,
        }
    brokers = []
    for broker in image.brokers.values():
        endpoint = broker.endpoint("kafka", context.listener)
        if endpoint is not None:
            address = {"host": endpoint.host, "port": endpoint.port, "rack": broker.rack}
            brokers.append({"broker_id": broker.id, "is_fenced": False} | address)
    with_operations = fields["include_cluster_authorized_operations"]
    return error_fields(None) | {
        "endpoint_type": _BROKERS,
        "cluster_id": image.cluster_id,
        "controller_id": image.controller,
        "brokers": brokers,
        "cluster_authorized_operations": admin.cluster_operations(context)
        if with_operations
        else admin.NO_OPERATIONS,
    }
