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
        "A topic and what it should look like.",
        {
            "cluster": cluster_reference(),
            "topicName": text(
                "The name on the brokers, if a resource cannot have it; else the resource's own.",
                pattern=TOPIC_NAME,
                maxLength=249,
            ),
            "partitions": whole("How many. They can become more, never fewer.", 1, 10_000, default=1),
            "replicas": whole("Of each partition; by default as the brokers' default.replication.factor.", 1, 32),
            "config": settings(
                "Settings of the topic, by Kafka's names. What is not named here goes back to its default."
            ),
            "deletionPolicy": choice(
                "Whether the topic goes with the resource.", ("Delete", "Retain"), default="Delete"
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
            "observedGeneration": long("The generation of the spec that this is about.", 0),
            "conditions": conditions(),
            "topicId": text("UUID of the topic."),
            "topicName": text("Its name on the brokers."),
            "partitionCount": whole("Partitions there are.", 0),
            "replicas": whole("Replicas of each.", 0),
            "inSync": text("Partitions with all replicas in sync, of all."),
            "partitions": listed(
                f"The first {ROWS_MAX} partitions.",
                thing(
                    "One partition.",
                    {
                        "partition": whole("Its number.", 0),
                        "leader": whole("Broker that leads it; -1 for none.", -1),
                        "leaderEpoch": whole("How often leadership changed.", 0),
                        "replicas": listed("Brokers that hold it.", broker_ids, 99),
                        "isr": listed("Of these, in sync.", broker_ids, 99),
                    },
                    required=("partition", "leader"),
                ),
                ROWS_MAX,
            ),
        },
    )
