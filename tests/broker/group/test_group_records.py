"""Records of `__consumer_offsets` against a log that Apache Kafka 4.3 wrote, and against hostile bytes."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.coordination.fields import Undecodable
from ottla_broker.coordination.partitioner import coordinator_partition, java_hash
from ottla_broker.coordination.shard import StateRecord
from ottla_broker.group.records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
    read_group,
    read_key,
    read_offset,
)
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import whole_batches
from ottla_core.records.codec import records_of

GOLDEN = Path(__file__).parents[2] / "golden" / "consumer_offsets" / "kafka-4.3.log"
TP = TopicPartition("golden", 1)


def kafkas_records() -> list[StateRecord]:
    data = GOLDEN.read_bytes()
    return [
        StateRecord(record.key or b"", record.value)
        for position, header in whole_batches(data)
        for record in records_of(data, position, header, limit_bytes=1 << 20)
    ]


def test_kafkas_records_are_understood_and_written_the_same() -> None:
    kinds: set[str] = set()
    for record in kafkas_records():
        key = read_key(record.key)
        if isinstance(key, OffsetKey):
            made = (
                offset_tombstone(*key)
                if record.value is None
                else offset_record(*key, read_offset(record.value))
            )
        else:
            assert isinstance(key, GroupKey)
            made = (
                group_tombstone(key.group)
                if record.value is None
                else group_record(key.group, read_group(record.value))
            )
        assert made == record
        kinds.add(f"{type(key).__name__} {'gone' if record.value is None else 'set'}")
    assert kinds == {"OffsetKey set", "OffsetKey gone", "GroupKey set", "GroupKey gone"}


def test_what_kafka_wrote_means_what_its_own_decoder_says() -> None:
    found = [(read_key(r.key), r.value) for r in kafkas_records()]
    groups = [read_group(v) for k, v in found if k == GroupKey("static") and v is not None]
    (member,) = groups[-1].members
    assert groups[-1].generation == 1
    assert groups[-1].protocol == "cooperative-sticky"
    assert groups[-1].leader_id == member.member_id
    assert (member.instance_id, member.client_id, member.client_host) == ("inst-1", "two", "/127.0.0.1")
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (300_000, 45_000)
    offsets = [read_offset(v) for k, v in found if k == OffsetKey("plain", TP) and v is not None]
    assert [(o.offset, o.leader_epoch, o.metadata) for o in offsets] == [
        (5, 0, ""),
        (3, -1, "some metadata\0"),
    ]
    assert offsets[0].topic_id.version == 4


def test_older_versions_are_read() -> None:
    v1 = bytes.fromhex("0001 0000000000000007 0002 6869 0000000000000064 00000000000000c8")
    assert read_offset(v1) == OffsetValue(7, -1, "hi", 100, 200)
    expiring = OffsetValue(7, -1, "hi", 100, 200)
    assert offset_record("g", TP, expiring).value == v1
    v3 = bytes.fromhex("0003 0000000000000007 00000005 0000 0000000000000064")
    assert read_offset(v3) == OffsetValue(7, 5, "", 100)
    v0 = bytes.fromhex("0000 0000 00000003 ffff ffff 00000001 0001 6d 0000 0000 00002710 00000000 00000000")
    assert read_group(v0).members == (MemberValue("m", None, "", "", 10_000, 10_000, b"", b""),)


def test_kinds_of_later_versions_are_passed_over() -> None:
    assert read_key(bytes.fromhex("0003 0001 67")) is None


@pytest.mark.parametrize(
    ("group", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("console-consumer-1", 35_782_224),
        ("größe", 98_762_257),
        ("\U0001d54f", 1_772_474),
    ],
)
def test_java_hash(group: str, hashed: int) -> None:
    assert java_hash(group) == hashed


def test_the_partition_is_never_negative() -> None:
    # Java's Math.abs gives Integer.MIN_VALUE back for itself; this name hashes to it.
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert coordinator_partition("polygenelubricants", 50) == 0
    assert coordinator_partition("g", 50) == 103 % 50


@given(
    st.builds(
        GroupValue,
        st.text(max_size=5),
        st.integers(0, 1 << 30),
        st.none() | st.text(max_size=5),
        st.none() | st.text(max_size=5),
        st.integers(-1, 1 << 60),
        st.lists(
            st.builds(
                MemberValue,
                st.text(max_size=5),
                st.none() | st.text(max_size=5),
                st.text(max_size=5),
                st.text(max_size=5),
                st.integers(0, 1 << 30),
                st.integers(0, 1 << 30),
                st.binary(max_size=20),
                st.binary(max_size=20),
            ),
            max_size=3,
        ).map(tuple),
    )
)
def test_groups_survive_the_way_to_the_log_and_back(value: GroupValue) -> None:
    record = group_record("größe", value)
    assert read_key(record.key) == GroupKey("größe")
    assert read_group(record.value or b"") == value


@given(st.integers(0, 1 << 60), st.integers(-1, 99), st.text(max_size=300), st.uuids(version=4))
def test_offsets_survive_the_way_to_the_log_and_back(
    offset: int, epoch: int, metadata: str, topic_id: UUID
) -> None:
    value = OffsetValue(offset, epoch, metadata, 1_700_000_000_000, None, topic_id)
    record = offset_record("g", TP, value)
    assert read_key(record.key) == OffsetKey("g", TP)
    assert read_offset(record.value or b"") == value


@given(st.binary(max_size=80))
def test_any_bytes_are_understood_or_refused(data: bytes) -> None:
    for read in (read_key, read_offset, read_group):
        try:
            read(data)
        except Undecodable:
            continue
