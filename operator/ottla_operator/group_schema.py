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
        "Where one partition is to go on.",
        {
            "topic": topic,
            "partition": whole("Its number.", 0),
            "offset": long("The next record to read.", 0),
        },
        required=("topic", "partition", "offset"),
    )
    reset = thing(
        "Move the committed offsets, once. A new id asks again.",
        {
            "id": text("A name for this reset; status remembers it.", minLength=1, maxLength=63),
            "to": choice("Where to.", RESET_TARGETS),
            "time": text("With to: time, the first record at or after it.", format="date-time", maxLength=64),
            "offsets": listed("With to: offsets.", offset, MOVED_MAX),
            "topics": listed("Only these; else all that the group reads.", topic, 100),
            "whenActive": choice(
                "What if the group has members: refuse, or wait until they are gone.",
                ("Refuse", "Wait"),
                default="Refuse",
            ),
        },
        required=("id", "to"),
        rules=[
            ("(self.to == 'time') == has(self.time)", "time belongs to to: time"),
            ("(self.to == 'offsets') == has(self.offsets)", "offsets belong to to: offsets"),
        ],
    )
    return thing(
        "A group of consumers: what it should look like, and how it does.",
        {
            "cluster": cluster_reference(),
            "groupId": text("The name on the brokers; else the resource's own.", minLength=1, maxLength=255),
            "topics": listed("Topics whose lag counts even before the first commit.", topic, 100),
            "assignor": choice(
                "The assignor of the group, if all members know it; else they vote.", ASSIGNORS
            ),
            "sessionTimeoutMs": whole(
                "After which a silent member is out, whatever it asks for.", 1, 3_600_000
            ),
            "rebalanceTimeoutMs": whole(
                "How long a rebalance waits for members, whatever they ask for.", 1, 86_400_000
            ),
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
            "memberId": text("Its id."),
            "instanceId": text("Of a static member."),
            "clientId": text("Name of its process."),
            "host": text("Where it connects from."),
            "partitions": listed("What it reads, as topic-partition.", {"type": "string"}, ROWS_MAX),
        },
        required=("memberId",),
    )
    lag = thing(
        "One partition.",
        {
            "topic": text("Its topic."),
            "partition": whole("Its number.", 0),
            "committed": long("The group's offset; -1 for none.", -1),
            "end": long("The partition's end.", -1),
            "lag": long("Records between.", 0),
            "memberId": text("Who reads it."),
        },
        required=("topic", "partition"),
    )
    moved = thing(
        "One partition that a reset moves.",
        {
            "topic": text("Its topic."),
            "partition": whole("Its number.", 0),
            "from": long("The offset before; -1 for none.", -1),
            "fromMs": long("When that was committed, in ms since 1970; -1 for never.", -1),
            "to": long("The offset after.", 0),
        },
        required=("topic", "partition", "from", "to"),
    )
    return thing(
        "What the operator found on the brokers.",
        {
            "observedGeneration": long("The generation of the spec that this is about.", 0),
            "conditions": conditions(),
            "groupId": text("Its name on the brokers."),
            "state": text("NotUsed, Empty, PreparingRebalance, CompletingRebalance or Stable."),
            "generation": whole("How often the group rebalanced; -1 for never.", -1),
            "assignor": text("The assignor in use."),
            "coordinator": whole("Broker that coordinates the group; -1 for none.", -1),
            "memberCount": whole("How many members.", 0),
            "members": listed(f"The first {ROWS_MAX} members.", member, ROWS_MAX),
            "totalLag": long("Of all partitions.", 0),
            "lag": listed(f"The {ROWS_MAX} partitions with the greatest lag.", lag, ROWS_MAX),
            "settings": texts("What this resource has set for the group at the brokers."),
            "offsetReset": thing(
                "The last reset.",
                {
                    "id": text("Its name in the spec."),
                    "digest": text("Of what was asked for."),
                    "state": choice(
                        "How far it is.", ("Waiting", "Refused", "Applying", "Done", "Interrupted", "Failed")
                    ),
                    "message": text("A sentence about it."),
                    "at": text("When it came to this state.", format="date-time"),
                    "moved": listed("What it moved.", moved, MOVED_MAX),
                },
                required=("id", "digest", "state"),
            ),
        },
    )
