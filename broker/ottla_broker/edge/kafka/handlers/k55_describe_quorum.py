"""DescribeQuorum (55), versions 0-2: which broker writes the metadata, and up to where it is known here. Used by
`kafka-metadata-quorum`. [S]

Ottla has no metadata log: etcd stores the metadata, and replicates it itself. The answer shows what corresponds: the
leader and only voter is the controller, the epoch is the controller's, and the log end and high watermark are the
store's revision as this broker has seen it. Brokers are not replicas of the metadata, so there are no observers.

Versions: 1 adds times, which are unknown here; 2 adds error sentences, directories and addresses.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ottla_broker.acl import Operation
from ottla_broker.edge.kafka.request import Context, Reply, Request, error_fields
from ottla_broker.metadata.image import ClusterImage
from ottla_core.errors import LeaderNotAvailable, RequestError, UnknownTopicOrPartition
from ottla_core.ids import NO_BROKER

_TOPIC = "__cluster_metadata"
_EPOCH_MAX = 2**31 - 1
_NO_TIME = -1


def handle(context: Context, request: Request) -> Reply:
    context.services.access.check_cluster(Operation.DESCRIBE)
    image = context.services.image
    topics = [
        {
            "topic_name": topic["topic_name"],
            "partitions": [
                _partition(context, image, topic["topic_name"], each["partition_index"])
                for each in topic["partitions"]
            ],
        }
        for topic in request.fields()["topics"]
    ]
    return error_fields(None) | {"topics": topics, "nodes": _nodes(context, image)}


def _partition(context: Context, image: ClusterImage, topic: str, index: int) -> dict[str, Any]:
    error: RequestError | None = None
    if topic != _TOPIC or index != 0:
        error = UnknownTopicOrPartition(f"Only partition 0 of {_TOPIC} has a metadata quorum.")
    elif image.controller == NO_BROKER:
        error = LeaderNotAvailable("There is no controller right now; try again.")
    if error is not None:
        context.failed(error)
        nothing = {"leader_id": -1, "leader_epoch": -1, "high_watermark": -1}
        return (
            error_fields(error) | nothing | {"partition_index": index, "current_voters": [], "observers": []}
        )
    voter = {
        "replica_id": image.controller,
        "replica_directory_id": UUID(int=0),
        "log_end_offset": image.revision,
        "last_fetch_timestamp": _NO_TIME,
        "last_caught_up_timestamp": _NO_TIME,
    }
    return error_fields(None) | {
        "partition_index": index,
        "leader_id": image.controller,
        # A revision of the store; the protocol has 31 bits for it.
        "leader_epoch": min(image.controller_revision, _EPOCH_MAX),
        "high_watermark": image.revision,
        "current_voters": [voter],
        "observers": [],
    }


def _nodes(context: Context, image: ClusterImage) -> list[dict[str, Any]]:
    """The controller's address on the listener asked."""
    broker = image.brokers.get(image.controller)
    endpoint = None if broker is None else broker.endpoint("kafka", context.listener)
    if endpoint is None:
        return []
    # Java clients refuse names with small letters here.
    listener = {"name": endpoint.listener.upper(), "host": endpoint.host, "port": endpoint.port}
    return [{"node_id": image.controller, "listeners": [listener]}]
