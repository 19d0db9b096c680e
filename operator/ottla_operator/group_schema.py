"""The schema of a ConsumerGroup. [P]"""

from __future__ import annotations

from ottla_operator.schemas import (
    MOVED_MAX,
    ROWS_MAX,
    Schema,
    choice,
    cluster_reference,
    conditions,
    listed,
    long,
    text,
    texts,
    thing,
    whole,
)
from ottla_operator.specs import ASSIGNORS, RESET_TARGETS, TOPIC_NAME


def group_spec() -> Schema:
    topic = text("Name of a topic.", pattern=TOPIC_NAME, maxLength=249)
    offset = thing(
        "Target offset of one partition.",
        {
            "topic": topic,
            "partition": whole("Partition number.", 0),
            "offset": long("Offset of the next record to read.", 0),
        },
        required=("topic", "partition", "offset"),
    )
    reset = thing(
        "Resets the committed offsets, once. A new id is a new request.",
        {
            "id": text("Identifies this reset; the status records it.", minLength=1, maxLength=63),
            "to": choice("Target of the reset.", RESET_TARGETS),
            "time": text("With to: time, the first record at or after it.", format="date-time", maxLength=64),
            "offsets": listed("With to: offsets, the target offsets.", offset, MOVED_MAX),
            "topics": listed("Only these topics. Default: all that the group reads.", topic, 100),
            "whenActive": choice(
                "If the group has members: refuse, or wait until they have left.",
                ("Refuse", "Wait"),
                default="Refuse",
            ),
        },
        required=("id", "to"),
        rules=[
            ("(self.to == 'time') == has(self.time)", "time and to: time must be used together"),
            ("(self.to == 'offsets') == has(self.offsets)", "offsets and to: offsets must be used together"),
        ],
    )
    return thing(
        "The desired state of a consumer group.",
        {
            "cluster": cluster_reference(),
            "groupId": text("Group id. Default: the resource's name.", minLength=1, maxLength=255),
            "topics": listed("Topics whose lag is shown even before the first commit.", topic, 100),
            "assignor": choice(
                "The assignor of the group, if all members support it; else the members vote.", ASSIGNORS
            ),
            "sessionTimeoutMs": whole("Session timeout; overrides the members' own.", 1, 3_600_000),
            "rebalanceTimeoutMs": whole("Rebalance timeout; overrides the members' own.", 1, 86_400_000),
            "offsetReset": reset,
        },
        required=("cluster",),
        rules=[
            ("has(self.groupId) == has(oldSelf.groupId)", "a group cannot be renamed"),
            (
                "!has(self.groupId) || !has(oldSelf.groupId) || self.groupId == oldSelf.groupId",
                "a group cannot be renamed",
            ),
        ],
    )


def group_status() -> Schema:
    member = thing(
        "One member.",
        {
            "memberId": text("Member id."),
            "instanceId": text("Group instance id of a static member."),
            "clientId": text("Client id."),
            "host": text("Address that it connects from."),
            "partitions": listed("Assigned partitions, as topic-partition.", {"type": "string"}, ROWS_MAX),
        },
        required=("memberId",),
    )
    lag = thing(
        "One partition.",
        {
            "topic": text("Topic name."),
            "partition": whole("Partition number.", 0),
            "committed": long("Committed offset; -1 for none.", -1),
            "end": long("End offset of the partition.", -1),
            "lag": long("Records between the committed offset and the end.", 0),
            "memberId": text("Member that the partition is assigned to."),
        },
        required=("topic", "partition"),
    )
    moved = thing(
        "One partition that a reset moves.",
        {
            "topic": text("Topic name."),
            "partition": whole("Partition number.", 0),
            "from": long("Committed offset before the reset; -1 for none.", -1),
            "fromMs": long("Commit time of that offset, in ms since 1970; -1 for never.", -1),
            "to": long("Committed offset after the reset.", 0),
        },
        required=("topic", "partition", "from", "to"),
    )
    return thing(
        "What the operator found on the brokers.",
        {
            "observedGeneration": long("Generation of the spec that this status describes.", 0),
            "conditions": conditions(),
            "groupId": text("Group id on the brokers."),
            "state": text("NotUsed, Empty, PreparingRebalance, CompletingRebalance or Stable."),
            "generation": whole("Generation of the group; -1 before the first rebalance.", -1),
            "assignor": text("The assignor in use."),
            "coordinator": whole("Id of the group's coordinator; -1 for none.", -1),
            "memberCount": whole("Number of members.", 0),
            "members": listed(f"The first {ROWS_MAX} members.", member, ROWS_MAX),
            "totalLag": long("Lag of all partitions together.", 0),
            "lag": listed(f"The {ROWS_MAX} partitions with the greatest lag.", lag, ROWS_MAX),
            "settings": texts("Settings of the group that this resource has set on the brokers."),
            "offsetReset": thing(
                "The last reset.",
                {
                    "id": text("Id of the reset, from the spec."),
                    "digest": text("Digest of the request."),
                    "state": choice(
                        "State of the reset.",
                        ("Waiting", "Refused", "Applying", "Done", "Interrupted", "Failed"),
                    ),
                    "message": text("Human-readable explanation."),
                    "at": text("When it entered this state.", format="date-time"),
                    "moved": listed("Partitions that it moves.", moved, MOVED_MAX),
                },
                required=("id", "digest", "state"),
            ),
        },
    )
