"""What the coordinators write for a scenario of requests, beside what those of Apache Kafka 4.3 wrote for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
def data() -> Iterator[Path]:
    """Of a broker on which the scenario has run."""
    with LocalCluster(settings={"group.initial.rebalance.delay.ms": "0", **SETTINGS}) as cluster:
        asyncio.run(scenario.run(int(cluster.kafka_bootstrap.rpartition(":")[2])))
        yield Path(cluster.data_dir)


def test_the_records_of_transactions_are_kafkas(data: Path) -> None:
    ours = reading.batches(*data.rglob("__transaction_state-0/*.log"))
    assert transactions(ours) == transactions(reading.batches(reading.TRANSACTIONS))


def transactions(batches: list[list[StateRecord]]) -> list[tuple[Any, ...]]:
    """Everything but times. Producer ids count from where they begin."""
    read = [(read_key(record.key), read_value(record.value or b"")) for batch in batches for record in batch]
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
