"""Records of `__transaction_state`: the bytes that Kafka's schema prescribes, and anything else refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.coordination.fields import Undecodable
from ottla_broker.txn.records import read_key, read_value, transaction_record, transaction_tombstone
from ottla_broker.txn.transaction import State, Transaction
from ottla_core.ids import TopicPartition

partitions = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 2**31 - 1))
longs = st.integers(-1, 2**63 - 1)
transactions = st.builds(
    Transaction,
    longs,
    st.integers(-1, 32_767),
    st.integers(0, 2**31 - 1),
    st.sampled_from([state for state in State if state is not State.EMPTY]),
    st.frozensets(partitions, max_size=5),
    longs,
    longs,
    longs,
    longs,
    st.integers(0, 2),
).filter(lambda txn: txn.previous_producer_id != txn.producer_id)


def test_the_bytes_of_a_record() -> None:
    txn = Transaction(
        producer_id=7,
        producer_epoch=3,
        timeout_ms=60_000,
        state=State.ONGOING,
        partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0)}),
        updated_ms=1000,
        started_ms=900,
        previous_producer_id=6,
        client_version=2,
    )
    record = transaction_record("me", txn)
    assert record.key == b"\0\0" + b"\0\2me"
    assert record.value == (
        b"\0\1"
        + struct.pack(">qhib", 7, 3, 60_000, 1)
        + b"\2"  # One topic.
        + b"\2t"
        + b"\3"  # Two partitions.
        + struct.pack(">ii", 0, 1)
        + b"\0"
        + struct.pack(">qq", 1000, 900)
        + b"\2"  # Two tagged fields.
        + b"\0\x08"
        + struct.pack(">q", 6)
        + b"\2\2"
        + struct.pack(">h", 2)
    )


def test_an_empty_transaction_has_null_for_partitions_and_its_own_id_as_the_previous_one() -> None:
    value = transaction_record("me", Transaction(7, 0, 1, State.EMPTY, frozenset(), 5)).value
    tags = b"\1" + b"\0\x08" + struct.pack(">q", 7)
    assert value == b"\0\1" + struct.pack(">qhib", 7, 0, 1, 0) + b"\0" + struct.pack(">qq", 5, -1) + tags


def test_version_0_is_read() -> None:
    value = struct.pack(">hqhib", 0, 7, 3, 60_000, 2) + struct.pack(">i", 1)
    value += b"\0\1t" + struct.pack(">ii", 1, 4) + struct.pack(">qq", 1000, 900)
    assert read_value(value) == Transaction(
        7, 3, 60_000, State.PREPARE_COMMIT, frozenset({TopicPartition("t", 4)}), 1000, 900
    )


@given(st.text(max_size=20), transactions)
def test_what_is_written_is_read(name: str, txn: Transaction) -> None:
    record = transaction_record(name, txn)
    assert record.value is not None
    assert read_key(record.key) == name and read_value(record.value) == txn
    assert transaction_tombstone(name).key == record.key


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_key, read_value):
        try:
            read(data)
        except Undecodable:
            pass


@pytest.mark.parametrize("version", [-1, 2])
def test_unknown_versions_are_refused(version: int) -> None:
    with pytest.raises(Undecodable):
        read_value(struct.pack(">h", version) + bytes(40))
