"""What the coordinators write for a scenario of requests, beside what those of Apache Kafka 4.3 wrote for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attack.kafka_wire import HostileClient
from golden.coordinators import reading, scenario
from ottla_broker.coordination.shard import StateRecord
from ottla_broker.group.consumer.partitions import each
from ottla_broker.group.consumer.records import (
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    ResolvedRegex,
    TargetAssignment,
    TargetEpoch,
    read_record,
)
from ottla_broker.txn.records import read_key, read_value
from ottla_cli.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

#: An internal topic has one partition, so its only segment has all.
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalCluster]:
    with LocalCluster(settings={"group.initial.rebalance.delay.ms": "0", **SETTINGS}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def data(broker: LocalCluster) -> Path:
    """Of a broker on which the scenario has run."""
    asyncio.run(scenario.run(_port(broker)))
    return Path(broker.data_dir)


def _port(broker: LocalCluster) -> int:
    return int(broker.kafka_bootstrap.rpartition(":")[2])


@pytest.mark.usefixtures("data")
def test_a_late_commit_is_taken_for_what_the_member_has_kept(broker: LocalCluster) -> None:
    """OffsetCommit and TxnOffsetCommit with the epoch before the last one (KIP-1251)."""
    asyncio.run(late_commits(_port(broker)))


async def late_commits(port: int) -> None:
    wire = await HostileClient.connect(port)
    client, group = scenario.Client(wire), "late"
    await client.ask(scenario.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
    one, two = (
        scenario.Member(client, group, name, subscribed_topic_names=[scenario.TOPIC]) for name in ("1", "2")
    )
    await one.beat()
    await one.report()
    late = one.epoch
    await two.beat()
    await one.beat()
    await one.report()
    kept = one.owned[0]["partitions"]
    assert one.epoch == late + 1 and len(kept) == 2
    (lost,) = {0, 1, 2} - set(kept)
    producer = await client.ask(
        scenario.INIT,
        4,
        transactional_id=group,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    await client.ask(scenario.ADD_OFFSETS, 3, transactional_id=group, group_id=group, **identity)
    member = {"group_id": group, "member_id": one.id}
    for partition, expected in ((kept[0], 0), (kept[1], 0), (lost, 113)):
        one_partition = {
            "partition_index": partition,
            "committed_offset": 0,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        topics = [{"name": scenario.TOPIC, "partitions": [one_partition]}]
        for key, version, fields in (
            (scenario.OFFSET_COMMIT, 9, {"generation_id_or_member_epoch": late}),
            (scenario.TXN_OFFSETS, 3, {"generation_id": late, "transactional_id": group, **identity}),
        ):
            answer = await wire.ask(key, version, **member, **fields, topics=topics)
            assert int(answer.topics[0].partitions[0].error_code) == expected, (key, partition, answer)
    wire.close()


def test_the_records_of_transactions_are_kafkas(data: Path) -> None:
    ours = reading.batches(*data.rglob("__transaction_state-0/*.log"))
    assert transactions(ours) == transactions(reading.batches(reading.TRANSACTIONS))


def transactions(batches: list[list[StateRecord]]) -> list[tuple[Any, ...]]:
    """Everything but times. Producer ids count from where they begin."""
    read = [(read_key(record.key), read_value(record.value or b"")) for batch in batches for record in batch]
    read = [(name, value) for name, value in read if name in (scenario.TXN, scenario.TXN_V2)]
    first = min(value.producer_id for _, value in read)
    return [
        (
            name,
            value.producer_id - first,
            value.producer_epoch,
            value.timeout_ms,
            value.state,
            sorted(value.partitions),
            value.started_ms > 0,
            value.previous_producer_id,
            value.next_producer_id,
            value.client_version,
        )
        for name, value in read
    ]


def test_the_records_of_a_broker_side_group_are_kafkas(data: Path) -> None:
    ours = steps(reading.batches(*data.rglob("__consumer_offsets-0/*.log")), scenario.GROUP)
    kafkas = steps(reading.batches(reading.GROUPS), scenario.GROUP)
    assert len(ours) == len(kafkas) == 10
    for number, (one, other) in enumerate(zip(ours, kafkas, strict=True)):
        assert one == other, f"request {number}"


def test_the_records_of_a_group_that_changes_its_protocol_are_kafkas(data: Path) -> None:
    ours, kafkas = (
        {entry for step in steps(batches, scenario.MIXED) for entry in step}
        for batches in (
            reading.batches(*data.rglob("__consumer_offsets-0/*.log")),
            reading.batches(reading.GROUPS),
        )
    )
    # Kafka resolves a pattern after it has answered: its member is in an epoch without partitions first.
    assert {entry for entry in kafkas - ours if entry[0] != CurrentAssignment.kind} == set()
    assert {
        entry for entry in ours - kafkas if entry[0] not in (CurrentAssignment.kind, GroupEpoch.kind)
    } == set()


def steps(batches: list[list[StateRecord]], group: str) -> list[list[tuple[Any, ...]]]:
    """By request: the records of the group, sorted, because Kafka's order within a request has no meaning.

    Epochs count from the first one, which is 1 here and 2 in Kafka. Which partitions a member gets is the assignor's
    affair, hashes and times are the broker's: of those, only whether there are any.
    """
    found = [
        [made for record in batch if (made := read_record(record)) and made.group == group]
        for batch in batches
    ]
    found = [step for step in found if step]
    first = next(r.value.epoch for step in found for r in step if isinstance(r.value, GroupEpoch)) - 1
    return [sorted(_entry(record, first) for record in step) for step in found]


def _entry(record: ConsumerRecord, first: int) -> tuple[Any, ...]:
    name = (
        record.name
        if record.name.startswith(("member", scenario.OTHER))
        else "generated"
        if record.name
        else ""
    )
    return (record.kind, name, repr(_plain(record.value, first)))


def _plain(value: Any, first: int) -> Any:
    match value:
        case GroupEpoch():
            return value.epoch - first
        case TargetEpoch():
            return value.epoch - first, value.timestamp_ms > 0
        case TargetAssignment():
            return sorted(len(indexes) for indexes in value.partitions.values())
        case CurrentAssignment():
            epoch = value.epoch - first if value.epoch > 0 else value.epoch
            counts = [sorted(map(len, found.values())) for found in (value.assigned, value.revoking)]
            got = (value.has_since(*place) or 0 for place in each(value.assigned))
            since = sorted(number - first if number > 0 else number for number in got)
            return epoch, value.state, counts, since
        case ResolvedRegex():
            return value.topics
    return value
