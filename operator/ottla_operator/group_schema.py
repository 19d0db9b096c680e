"""The schema of a ConsumerGroup. [P]"""

from __future__ import annotations

from ottla_operator.schemas import (
    MOVED_MAX,
    NAMES_MAX,
    ROWS_MAX,
    Schema,
    choice,
    cluster_reference,
    conditions,
    fraction,
    listed,
    long,
    text,
    texts,
    thing,
    whole,
)
from ottla_operator.specs import ASSIGNORS, INSTANCE_ID, RESET_TARGETS, SCALE_TARGETS, TOPIC_NAME, UNPINNABLE

_ASSIGNMENT_RULES = (
    (
        "!has(self.assignor) || !has(self.customAssignor)",
        "assignor and customAssignor cannot be used together",
    ),
    (
        "!has(self.assignorParameters) || !has(self.assignorParameters.tolerance) || "
        "(has(self.assignor) && self.assignor == 'sticky')",
        "assignorParameters.tolerance needs assignor: sticky",
    ),
    (
        f"!has(self.pins) || !has(self.assignor) || !(self.assignor in {list(UNPINNABLE)})",
        f"pins cannot be used with the assignors {', '.join(UNPINNABLE)}",
    ),
    (
        "!has(self.scale) || !has(self.assignor) || self.assignor != 'broadcast'",
        "scale cannot be used with the assignor broadcast: each member reads everything",
    ),
)


def _topic() -> Schema:
    return text("Name of a topic.", pattern=TOPIC_NAME, maxLength=249)


def group_spec() -> Schema:
    return thing(
        "The desired state of a consumer group.",
        {
            "cluster": cluster_reference(),
            "groupId": text("Group id. Default: the resource's name.", minLength=1, maxLength=255),
            "topics": listed("Topics whose lag is shown even before the first commit.", _topic(), 100),
            **_assignment(),
            "sessionTimeoutMs": whole("Session timeout; overrides the members' own.", 1, 3_600_000),
            "rebalanceTimeoutMs": whole("Rebalance timeout; overrides the members' own.", 1, 86_400_000),
            "offsetReset": _reset(),
            "scale": _scale(),
        },
        required=("cluster",),
        rules=[
            ("has(self.groupId) == has(oldSelf.groupId)", "a group cannot be renamed"),
            (
                "!has(self.groupId) || !has(oldSelf.groupId) || self.groupId == oldSelf.groupId",
                "a group cannot be renamed",
            ),
            *_ASSIGNMENT_RULES,
        ],
    )


def _assignment() -> dict[str, Schema]:
    pin = thing(
        "One pinned partition.",
        {
            "topic": _topic(),
            "partition": whole("Partition number.", 0),
            "instanceId": text(
                "group.instance.id of the member.", pattern=INSTANCE_ID, minLength=1, maxLength=249
            ),
        },
        required=("topic", "partition", "instanceId"),
    )
    return {
        "assignor": choice(
            "The assignor of the group. Broker-side groups have range, sticky, uniform, consistent-hash, broadcast "
            "and pinned; in classic groups all members must support it, else they vote.",
            ASSIGNORS,
        ),
        "customAssignor": text(
            "Name of a custom assignor that is installed on the brokers, instead of assignor.",
            minLength=1,
            maxLength=249,
        ),
        "assignorParameters": thing(
            "Parameters of the assignor.",
            {
                "tolerance": fraction(
                    "With assignor: sticky, the part by which a member may exceed its share before partitions "
                    "move. Default: 0.2."
                )
            },
        ),
        "pins": listed(
            "Partitions that a certain member reads; the assignor assigns the rest, and those whose member is "
            "absent. Broker-side groups only.",
            pin,
            ROWS_MAX,
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["topic", "partition"]},
        ),
    }


def _scale() -> Schema:
    target = thing(
        "The consumers, in the same namespace.",
        {
            "kind": choice("Deployment or StatefulSet.", SCALE_TARGETS, default="Deployment"),
            "name": text("Its name.", minLength=1, maxLength=253),
        },
        required=("name",),
    )
    return thing(
        "Scales the consumers by the group's lag.",
        {
            "targetRef": target,
            "min": whole("Fewest replicas; 0: none while the group is idle.", 0, 10_000, default=1),
            "max": whole("Most replicas; there are never more than partitions.", 1, 10_000),
            "lagPerReplica": long("Records of lag for each replica.", 1),
            "lagSeconds": whole("Adds replicas while the oldest record is older than this.", 1, 86_400),
            "stabilizationSeconds": whole(
                "Removes replicas when they were not needed for so long.", 0, 3600, default=300
            ),
        },
        required=("targetRef", "max"),
        rules=[
            ("has(self.lagPerReplica) || has(self.lagSeconds)", "lagPerReplica or lagSeconds is required"),
            ("self.min <= self.max", "min cannot be greater than max"),
        ],
    )


def _reset() -> Schema:
    offset = thing(
        "Target offset of one partition.",
        {
            "topic": _topic(),
            "partition": whole("Partition number.", 0),
            "offset": long("Offset of the next record to read.", 0),
        },
        required=("topic", "partition", "offset"),
    )
    return thing(
        "Resets the committed offsets, once. A new id is a new request.",
        {
            "id": text("Identifies this reset; the status records it.", minLength=1, maxLength=63),
            "to": choice("Target of the reset.", RESET_TARGETS),
            "time": text("With to: time, the first record at or after it.", format="date-time", maxLength=64),
            "offsets": listed("With to: offsets, the target offsets.", offset, MOVED_MAX),
            "topics": listed("Only these topics. Default: all that the group reads.", _topic(), 100),
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


def group_status() -> Schema:
    member = thing(
        "One member.",
        {
            "memberId": text("Member id."),
            "instanceId": text("Group instance id of a static member."),
            "clientId": text("Client id."),
            "host": text("Address that it connects from."),
            "partitionCount": whole("Number of assigned partitions.", 0),
            "partitions": listed("Assigned partitions, as topic-partition.", {"type": "string"}, NAMES_MAX),
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
            "lagSeconds": long("Age of the oldest record that is not committed; 0 if all is committed.", 0),
            "memberId": text("Member that the partition is assigned to."),
        },
        required=("topic", "partition"),
    )
    return thing(
        "What the operator found on the brokers.",
        {
            "observedGeneration": long("Generation of the spec that this status describes.", 0),
            "conditions": conditions(),
            "groupId": text("Group id on the brokers."),
            "state": text(
                "NotUsed, Empty or Stable; classic: PreparingRebalance, CompletingRebalance; consumer: Assigning, "
                "Reconciling."
            ),
            "type": text("classic, or consumer: broker-side."),
            "generation": whole("Generation or group epoch; -1 before the first rebalance.", -1),
            "epoch": whole("Group epoch of a broker-side group.", -1),
            "assignor": text("The assignor in use."),
            "coordinator": whole("Id of the group's coordinator; -1 for none.", -1),
            "memberCount": whole("Number of members.", 0),
            "members": listed(f"The first {ROWS_MAX} members.", member, ROWS_MAX),
            "totalLag": long("Lag of all partitions together.", 0),
            "lagSeconds": long("Lag in time, of the partition that is furthest behind.", 0),
            "partitionCount": whole(
                "Number of partitions that the group reads or has committed offsets for.", 0
            ),
            "note": text("Topics of the spec that do not exist, and what this status leaves out."),
            "lag": listed(f"The {ROWS_MAX} partitions with the greatest lag.", lag, ROWS_MAX),
            "settings": texts("Settings of the group that this resource has set on the brokers."),
            "offsetReset": _reset_status(),
            "scale": _scale_status(),
        },
    )


def _scale_status() -> Schema:
    return thing(
        "Replicas of the consumers.",
        {
            "target": text("Kind and name."),
            "replicas": whole("Replicas that run.", 0),
            "desired": whole("Replicas that should run.", 0),
            "lastScaleTime": text("When the operator last changed them.", format="date-time"),
            "notSustained": thing(
                "A rate that the replicas fell behind at; fewer are not tried again while it lasts.",
                {
                    "recordsPerSecondAndReplica": whole("The rate.", 0),
                    "at": text("When they fell behind.", format="date-time"),
                },
            ),
            "stabilizing": thing(
                "The stabilization window so far, if fewer replicas are recommended.",
                {
                    "since": text("Its begin.", format="date-time"),
                    "mostRecommended": whole("The most replicas recommended in it.", 0),
                },
            ),
        },
        required=("target",),
    )


def _reset_status() -> Schema:
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
    )
