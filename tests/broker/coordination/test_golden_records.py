"""Records of broker-side groups and of transactions, against logs that Apache Kafka 4.3 wrote: the same bytes."""

from __future__ import annotations

from golden.coordinators import reading, scenario
from ottla_broker.coordination.shard import StateRecord
from ottla_broker.group.consumer.records import (
    ConsumerRecord,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    TargetEpoch,
    read_record,
)
from ottla_broker.txn.records import read_key, read_value, transaction_record
from ottla_broker.txn.transaction import NO_PRODUCER_ID, State
from ottla_core.ids import TopicPartition

#: Partition metadata: Kafka still writes tombstones of it.
OBSOLETE_KIND = 4


def kafkas(path: reading.Path) -> list[StateRecord]:
    return [record for batch in reading.batches(path) for record in batch]


def group_records() -> list[tuple[StateRecord, ConsumerRecord]]:
    found = ((record, read_record(record)) for record in kafkas(reading.GROUPS))
    return [(record, made) for record, made in found if made is not None]


def test_records_of_broker_side_groups_are_written_as_kafka_writes_them() -> None:
    kinds = set()
    for record, made in group_records():
        kinds.add((made.kind, made.value is None))
        assert made.encoded() == record
    assert kinds == {(kind, gone) for kind in (3, 5, 6, 7, 8, 16) for gone in (False, True)}


def test_what_kafka_wrote_of_a_group_means_what_happened() -> None:
    made = [each for _, each in group_records() if each.value is not None]
    values = {(each.group, each.name): each.value for each in made if isinstance(each.value, MemberMetadata)}
    static = values[scenario.GROUP, scenario.TWO]
    assert (static.instance_id, static.rack_id, static.assignor, static.regex) == (
        "instance",
        "rack",
        None,
        None,
    )
    assert static.topics == (scenario.TOPIC, scenario.OTHER) and static.classic is None
    assert values[scenario.GROUP, scenario.ONE].assignor == "uniform"
    (classic,) = [each.classic for each in values.values() if each.classic is not None]
    assert classic.session_timeout_ms == 30_000 and [each.name for each in classic.protocols] == ["range"]
    states = {
        each.name: each.value.state
        for each in reversed(made)
        if isinstance(each.value, CurrentAssignment) and each.group == scenario.GROUP
    }
    assert states[scenario.ONE] is MemberState.STABLE
    assert states[scenario.TWO] is MemberState.UNRELEASED, "it waits for what the first one has to give up"
    assert all(each.value.timestamp_ms > 0 for each in made if isinstance(each.value, TargetEpoch))


def test_states_of_members_that_earlier_brokers_wrote_are_read() -> None:
    """They numbered them from 1."""
    topic = next(iter(next(each.value.assigned for _, each in group_records() if _is_assigned(each))))
    for state, revoking, earlier in (
        (MemberState.STABLE, {}, 1),
        (MemberState.UNREVOKED, {topic: frozenset({1})}, 2),
        (MemberState.UNRELEASED, {}, 3),
    ):
        written = ConsumerRecord("g", 8, "m", CurrentAssignment(5, 4, state, {}, revoking))
        record = written.encoded()
        value = bytearray(record.value or b"")
        assert value[10] == state
        value[10] = earlier
        assert read_record(StateRecord(record.key, bytes(value))) == written == read_record(record)


def _is_assigned(record: ConsumerRecord) -> bool:
    return isinstance(record.value, CurrentAssignment) and bool(record.value.assigned)


def test_records_of_transactions_are_written_as_kafka_writes_them() -> None:
    states = set()
    for record in kafkas(reading.TRANSACTIONS):
        name, value = read_key(record.key), read_value(record.value or b"")
        assert name in (scenario.TXN, scenario.TXN_V2)
        again = transaction_record(name, value)
        # Kafka writes partitions in the order of a hash table.
        assert again == record if len(value.partitions) < 2 else read_value(again.value or b"") == value
        assert len(again.value or b"") == len(record.value or b"")
        assert value.previous_producer_id == NO_PRODUCER_ID
        assert value.client_version == (
            2 if name == scenario.TXN_V2 and value.producer_epoch + value.state else 0
        )
        states.add(value.state)
    assert states == {
        State.EMPTY,
        State.ONGOING,
        State.PREPARE_COMMIT,
        State.COMPLETE_COMMIT,
        State.PREPARE_ABORT,
        State.COMPLETE_ABORT,
    }
    added = [read_value(record.value or b"").partitions for record in kafkas(reading.TRANSACTIONS)[1:3]]
    assert [sorted(each) for each in added] == [
        [TopicPartition(scenario.TOPIC, index) for index in indexes] for indexes in ((0, 2), (0, 1, 2))
    ]
