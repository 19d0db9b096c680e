"""The transaction coordinator: epochs, fencing, decisions, markers, timeouts, and takeovers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.txn.txn_driver import T0, T1, TIMEOUT_MS, TxnDriver
from ottla_broker.requests import ProducerIdentity
from ottla_broker.txn.messages import MarkersWritten, VerifyPartitions
from ottla_broker.txn.records import transaction_record
from ottla_broker.txn.transaction import EPOCH_MAX, State
from ottla_core.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    PolicyViolation,
    ProducerFenced,
    RequestError,
    TransactionAbortable,
)
from ottla_core.ids import TopicPartition


@pytest.fixture
def driver() -> TxnDriver:
    return TxnDriver()


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_from_begin_to_end(driver: TxnDriver, version: int, commits: bool) -> None:
    producer = driver.init()
    assert producer == ProducerIdentity(100, 0)
    driver.add(producer, T0, version=version)
    driver.add(producer, T0, T1, version=version)
    after = driver.end(producer, commits=commits, version=version)
    assert after == (ProducerIdentity(100, 1) if version else producer)
    (markers,) = driver.write_markers()
    assert (markers.producer, markers.commits, markers.partitions) == (after, commits, {T0, T1})
    assert driver.txn.state is (State.COMPLETE_COMMIT if commits else State.COMPLETE_ABORT)
    assert driver.txn.producer == after and not driver.txn.partitions
    driver.add(after, T1, version=version)
    assert driver.txn.is_ongoing


def test_each_producer_gets_its_own_epoch_and_fences_the_one_before(driver: TxnDriver) -> None:
    old = driver.init()
    new = driver.init()
    assert new == ProducerIdentity(100, 1)
    with pytest.raises(ProducerFenced):
        driver.add(old, T0)
    with pytest.raises(ProducerFenced):
        driver.end(old, commits=True)
    with pytest.raises(InvalidProducerIdMapping):
        driver.add(ProducerIdentity(5, 0), T0)


def test_a_new_producer_aborts_the_open_transaction_first(driver: TxnDriver) -> None:
    old = driver.init()
    driver.add(old, T0)
    for _ in range(2):
        with pytest.raises(ConcurrentTransactions):
            driver.init()
    (markers,) = driver.write_markers()
    assert (markers.producer.producer_epoch, markers.commits) == (1, False)
    assert driver.init().producer_epoch == 2


def test_a_producer_may_continue_after_an_error_and_repeat_that(driver: TxnDriver) -> None:
    """KIP-360."""
    first = driver.init()
    second = driver.init(current=first)
    assert second.producer_epoch == 1
    assert driver.init(current=first) == second, "the response was lost"
    other = driver.init()
    assert other.producer_epoch == 2
    for fenced in (first, second):
        with pytest.raises(ProducerFenced):
            driver.init(current=fenced)


def test_a_transaction_is_aborted_after_its_timeout(driver: TxnDriver) -> None:
    producer = driver.init()
    driver.add(producer, T0)
    driver.pass_time(TIMEOUT_MS - 100)
    driver.add(producer, T1)
    assert driver.txn.is_ongoing, "the timeout counts from the first partition"
    driver.pass_time(200)
    with pytest.raises(ProducerFenced):
        driver.end(producer, commits=True)
    (markers,) = driver.write_markers()
    assert not markers.commits and markers.partitions == {T0, T1}
    assert driver.probe.timed_out == 1


def test_the_timeout_counts_from_the_start_after_a_takeover(driver: TxnDriver) -> None:
    driver.add(driver.init(), T0)
    driver.pass_time(TIMEOUT_MS - 1000)
    driver.reload()
    assert driver.txn.is_ongoing
    driver.pass_time(1100)
    assert driver.txn.state is State.PREPARE_ABORT


def test_a_decided_transaction_is_finished_by_the_next_coordinator(driver: TxnDriver) -> None:
    producer = driver.init()
    driver.add(producer, T0)
    driver.end(producer, commits=True)
    driver.reload()
    (markers,) = driver.write_markers()
    assert markers.commits and markers.partitions == {T0}
    assert driver.end(producer, commits=True) == producer, "asked again after the response was lost"
    driver.reload()
    assert not driver.effects


def test_missing_markers_are_decided_on_again(driver: TxnDriver) -> None:
    producer = driver.init()
    driver.add(producer, T0, T1)
    driver.end(producer, commits=True)
    (effect,) = driver.effects
    driver.effects.clear()
    driver.ask(MarkersWritten("me", effect.producer, frozenset({T1})))
    (again,) = driver.effects
    assert again == replace(effect, partitions=frozenset({T1}))
    assert driver.txn.is_prepared
    driver.write_markers()
    driver.ask(MarkersWritten("me", effect.producer))
    assert driver.txn.state is State.COMPLETE_COMMIT


def test_what_a_decided_transaction_refuses(driver: TxnDriver) -> None:
    producer = driver.init()
    with pytest.raises(InvalidTxnState):
        driver.end(producer, commits=True)
    driver.add(producer, T0)
    driver.end(producer, commits=True)
    refused: list[tuple[type[RequestError], bool]] = [
        (ConcurrentTransactions, True),
        (InvalidTxnState, False),
    ]
    for error, commits in refused:
        with pytest.raises(error):
            driver.end(producer, commits=commits)
    with pytest.raises(ConcurrentTransactions):
        driver.add(producer, T1)
    driver.write_markers()
    with pytest.raises(InvalidTxnState):
        driver.end(producer, commits=False)


def test_verification_changes_nothing(driver: TxnDriver) -> None:
    producer = driver.init()
    driver.add(producer, T0)
    before = driver.txn
    known, unknown = driver.ask(VerifyPartitions("me", producer, (T0, T1))).errors
    assert known is None and isinstance(unknown, TransactionAbortable)
    assert driver.txn is before
    driver.end(producer, commits=True)
    with pytest.raises(ConcurrentTransactions):
        driver.ask(VerifyPartitions("me", producer, (T0,)))
    driver.write_markers()
    (ended,) = driver.ask(VerifyPartitions("me", producer, (T0,))).errors
    assert isinstance(ended, TransactionAbortable)


def test_with_transactions_v2_an_end_may_come_again(driver: TxnDriver) -> None:
    producer = driver.init()
    driver.add(producer, T0, version=2)
    after = driver.end(producer, commits=True, version=2)
    with pytest.raises(ConcurrentTransactions):
        driver.end(producer, commits=True, version=2)
    driver.write_markers()
    assert driver.end(producer, commits=True, version=2) == after
    with pytest.raises(InvalidTxnState):
        driver.end(producer, commits=False, version=2)
    driver.add(after, T0, version=2)
    with pytest.raises(ProducerFenced):
        driver.end(producer, commits=True, version=2)


def test_with_transactions_v2_an_empty_abort_ends_the_epoch(driver: TxnDriver) -> None:
    producer = driver.init()
    with pytest.raises(InvalidTxnState):
        driver.end(producer, commits=True, version=2)
    after = driver.end(producer, commits=False, version=2)
    assert after.producer_epoch == 1 and not driver.effects
    assert driver.end(producer, commits=False, version=2) == after


def test_epochs_end_and_a_new_producer_id_begins(driver: TxnDriver) -> None:
    producer = driver.init()
    last = replace(driver.txn, producer_epoch=EPOCH_MAX - 1)
    driver.log.append(transaction_record("me", last))
    driver.reload()
    producer = last.producer
    driver.add(producer, T0, version=2)
    after = driver.end(producer, commits=True, version=2)
    assert after == ProducerIdentity(101, 0)
    (markers,) = driver.write_markers()
    assert markers.producer == ProducerIdentity(100, EPOCH_MAX)
    assert driver.end(producer, commits=True, version=2) == after, "asked again"
    driver.add(after, T0, version=2)


def test_init_takes_a_new_producer_id_at_the_last_epoch(driver: TxnDriver) -> None:
    driver.init()
    last = replace(driver.txn, producer_epoch=EPOCH_MAX - 1)
    driver.log.append(transaction_record("me", last))
    driver.reload()
    assert driver.init(current=last.producer) == ProducerIdentity(101, 0)
    assert driver.init(current=last.producer) == ProducerIdentity(101, 0), "asked again"


def test_idle_ids_expire(driver: TxnDriver) -> None:
    driver.init()
    driver.init("other")
    driver.pass_time(604_800_000 + 3_600_000)
    assert not driver.shard.transactions
    driver.reload()
    assert not driver.shard.transactions


def test_ids_and_partitions_are_refused_beyond_the_memory_for_them(driver: TxnDriver) -> None:
    """What is open can end, which makes room; a coordinator that takes over counts the same."""
    driver.shard._settings = replace(driver.shard._settings, state_max_bytes=3000)
    producer = driver.init()
    driver.init("other")
    with pytest.raises(PolicyViolation, match=r"transaction\.state\.max\.bytes is 3000"):
        driver.init("third")
    assert driver.init("other").producer_epoch == 1, "an id that exists is not refused"
    driver.add(producer, T0, T1)
    many = [TopicPartition("many", number) for number in range(10)]
    with pytest.raises(PolicyViolation):
        driver.add(producer, *many)
    held = driver.shard.bytes
    driver.end(producer, commits=True)
    driver.write_markers()
    assert driver.shard.bytes < held
    driver.add(producer, *many[:2])
    held = driver.shard.bytes
    driver.reload()
    assert driver.shard.bytes == held
    driver.pass_time(TIMEOUT_MS)
    driver.write_markers()
    driver.pass_time(700_000_000)
    assert driver.shard.transactions == {} and driver.shard.bytes == 0
