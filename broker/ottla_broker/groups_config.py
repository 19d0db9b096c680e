"""Settings of consumer groups for the whole broker; a part of `BrokerConfig` (`config.py`, which has the rules for such
parts). `group_config.py` has the settings of one group. [P]"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_broker.setting import LONG_MAX, choice, setting, whole

MIB = 1024 * 1024


@dataclass(frozen=True)
class GroupsConfig:
    """Consumer groups and their offsets."""

    partitions: int = setting(
        "offsets.topic.num.partitions",
        "50",
        whole(1, 100_000),
        "Partitions of __consumer_offsets; fixed once it exists.",
    )
    # Kafka's default is 3, with which a single broker has no groups at all. An explicit value is used as it is.
    replication_factor: int = setting(
        "offsets.topic.replication.factor",
        "-1",
        whole(-1, 32_767),
        "Replicas of __consumer_offsets when it is created; -1: three, or as many as there are brokers.",
    )
    segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        str(100 * MIB),
        whole(MIB),
        "Segment size of __consumer_offsets; small segments load faster.",
    )
    commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms",
        "5000",
        whole(1),
        "How long a response waits for its records to be committed.",
    )
    metadata_bytes_max: int = setting(
        "offset.metadata.max.bytes",
        "4096",
        whole(0, 32_767),
        "Maximum size of the metadata of a committed offset.",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        "10080",
        whole(1),
        "How long offsets are kept when a group has no members, or no longer subscribes to the topic.",
    )
    offsets_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        "600000",
        whole(1, LONG_MAX),
        "How often the broker checks for expired offsets.",
    )
    session_timeout_min_ms: int = setting(
        "group.min.session.timeout.ms",
        "6000",
        whole(1),
        "Minimum session timeout; shorter ones cost the broker more heartbeats.",
    )
    session_timeout_max_ms: int = setting(
        "group.max.session.timeout.ms",
        "1800000",
        whole(1),
        "Maximum session timeout; longer ones leave partitions of dead members unread.",
    )
    initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        "3000",
        whole(0),
        "How long the first rebalance of a group waits for more members; at most the rebalance timeout.",
    )
    # Kafka has no limit. A member costs a few KiB and its part of every rebalance's record.
    size_max: int = setting("group.max.size", "10000", whole(1), "Maximum number of members of one group.")
    consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        "45000",
        whole(1),
        "Broker-side groups: a member without heartbeats for this time is removed.",
    )
    consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        "5000",
        whole(1),
        "Broker-side groups: how often members send heartbeats; they learn of new assignments that way. With few "
        "members it is less, see group.consumer.heartbeat.interval.min.ms.",
    )
    # A rebalance takes one or two intervals. Kafka has no such setting, and 5 s for any number of members.
    consumer_heartbeat_interval_min_ms: int = setting(
        "group.consumer.heartbeat.interval.min.ms",
        "500",
        whole(1),
        "Broker-side groups: the interval while a partition of __consumer_offsets has at most ten members; it grows "
        "with them, 50 ms for each, up to group.consumer.heartbeat.interval.ms. Set both to the same to have one.",
    )
    # Kafka has no limit. Ten thousand members with 12 KiB each; a consumer of ten topics needs 1.5 KiB.
    members_max_bytes: int = setting(
        "group.members.max.bytes",
        str(128 * MIB),
        whole(MIB),
        "Memory for the members of all groups that this broker coordinates (ids, metadata, assignments); "
        "beyond it, new members are refused.",
    )
    # Kafka has no limit. As group.max.size.
    consumer_size_max: int = setting(
        "group.consumer.max.size", "10000", whole(1), "Broker-side groups: maximum number of members of one."
    )
    migration: str = setting(
        "group.consumer.migration.policy",
        "bidirectional",
        choice("bidirectional", "upgrade", "downgrade", "disabled"),
        "Whether groups with members change to the broker-side protocol (upgrade) when its first member joins, and "
        "back to the classic one (downgrade) when its last member leaves.",
    )
