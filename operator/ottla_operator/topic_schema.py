"""The schema of a Topic. [P]"""

from __future__ import annotations

from ottla_operator.schemas import (
    ROWS_MAX,
    Schema,
    choice,
    cluster_reference,
    conditions,
    listed,
    long,
    settings,
    text,
    thing,
    whole,
)
from ottla_operator.specs import TOPIC_NAME


def topic_spec() -> Schema:
    return thing(
        "The desired state of a topic.",
        {
            "cluster": cluster_reference(),
            "topicName": text(
                "Name of the topic, if it is not a valid resource name. Default: the resource's name.",
                pattern=TOPIC_NAME,
                maxLength=249,
            ),
            "partitions": whole("Number of partitions. It can grow, never shrink.", 1, 10_000, default=1),
            "replicas": whole("Replication factor. Default: the brokers' default.replication.factor.", 1, 32),
            "assignment": listed(
                "Declares the placement of partitions; rebalancing does not move them.",
                thing(
                    "One partition.",
                    {
                        "partition": whole("Partition number.", 0, 9999),
                        "brokers": listed(
                            "Ids of the replicas, the preferred leader first.",
                            whole("Broker id.", 0),
                            32,
                            minItems=1,
                        ),
                    },
                    required=("partition", "brokers"),
                ),
                ROWS_MAX,
                **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["partition"]},
            ),
            "config": settings(
                "Topic settings, with Kafka's names. Settings that are not listed are reset to their defaults."
            ),
            "deletionPolicy": choice(
                "What happens to the topic when the resource is deleted.", ("Delete", "Retain"), default="Delete"
            ),
        },
        required=("cluster",),
        rules=[
            ("has(self.topicName) == has(oldSelf.topicName)", "a topic cannot be renamed"),
            (
                "!has(self.topicName) || !has(oldSelf.topicName) || self.topicName == oldSelf.topicName",
                "a topic cannot be renamed",
            ),
        ],
    )  # fmt: skip


def topic_status() -> Schema:
    broker_ids = {"type": "integer", "format": "int32"}
    return thing(
        "What the operator found on the brokers.",
        {
            "observedGeneration": long("Generation of the spec that this status describes.", 0),
            "conditions": conditions(),
            "topicId": text("UUID of the topic."),
            "topicName": text("Name of the topic on the brokers."),
            "partitionCount": whole("Number of partitions.", 0),
            "replicas": whole("Replication factor.", 0),
            "inSync": text("Partitions with all replicas in sync / all partitions."),
            "partitions": listed(
                f"The first {ROWS_MAX} partitions.",
                thing(
                    "One partition.",
                    {
                        "partition": whole("Partition number.", 0),
                        "leader": whole("Id of the leader; -1 for none.", -1),
                        "leaderEpoch": whole("Leader epoch.", 0),
                        "replicas": listed("Ids of the replicas.", broker_ids, 99),
                        "isr": listed("Ids of the in-sync replicas.", broker_ids, 99),
                    },
                    required=("partition", "leader"),
                ),
                ROWS_MAX,
            ),
        },
    )
