"""Transactions that their producer has prepared: held open without it, and ended by any process, once."""

from __future__ import annotations

import pytest

from broker.txn.txn_driver import T0, T1, TIMEOUT_MS, TxnDriver
from ottla_broker.requests import ProducerIdentity
from ottla_broker.transactions_config import TransactionsConfig
from ottla_broker.txn.messages import (
    ForgetTransactionalId,
    InitProducer,
    KeptTransaction,
    ListTransactions,
    PrepareTransaction,
)
from ottla_broker.txn.transaction import State
from ottla_core.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
)

BOUND_MS = TransactionsConfig().two_phase_max_timeout_ms


@pytest.fixture
def driver() -> TxnDriver:
    return TxnDriver()


def prepared(driver: TxnDriver) -> ProducerIdentity:
    producer = driver.init()
    driver.add(producer, T0, version=2)
    driver.ask(PrepareTransaction("me", producer))
    return producer


@pytest.mark.parametrize("commits", [True, False])
def test_it_outlives_its_timeout_and_its_coordinators_and_is_ended_once(
    driver: TxnDriver, commits: bool
) -> None:
    producer = prepared(driver)
    driver.ask(PrepareTransaction("me", producer))  # the response was lost
    driver.pass_time(TIMEOUT_MS * 100)
    driver.reload()
    assert driver.txn.is_ongoing and driver.txn.is_two_phase
    driver.end(producer, commits=commits, version=2)
    with pytest.raises(ConcurrentTransactions):
        driver.end(producer, commits=commits, version=2)
    driver.reload()
    (markers,) = driver.write_markers()
    assert (markers.commits, markers.partitions) == (commits, {T0})
    for _ in range(2):
        driver.end(producer, commits=commits, version=2)
        with pytest.raises(InvalidTxnState, match="already"):
            driver.end(producer, commits=not commits, version=2)
        driver.reload()
    assert not driver.effects


def test_it_is_the_same_after_a_takeover_at_each_record(driver: TxnDriver) -> None:
    producer = prepared(driver)
    driver.end(producer, commits=True, version=2)
    driver.write_markers()
    whole = list(driver.log)
    assert len(whole) == 5  # empty, ongoing, prepared, decided, complete
    for count in range(3, len(whole) + 1):
        later = TxnDriver()
        later.log = whole[:count]
        later.reload()
        if later.txn.is_ongoing:
            later.end(producer, commits=True, version=2)
        later.write_markers()
        assert later.txn.state is State.COMPLETE_COMMIT
        later.end(producer, commits=True, version=2)
        with pytest.raises(InvalidTxnState):
            later.end(producer, commits=False, version=2)


def test_it_is_aborted_after_the_bound_of_the_broker(driver: TxnDriver) -> None:
    producer = prepared(driver)
    driver.pass_time(BOUND_MS - 1000)
    driver.reload()
    assert driver.txn.is_ongoing
    driver.pass_time(1100)
    assert driver.txn.state is State.PREPARE_ABORT and driver.probe.timed_out == 1
    driver.write_markers()
    with pytest.raises(InvalidTxnState, match="already aborted"):
        driver.end(producer, commits=True, version=2)


def test_a_writer_that_dies_before_it_prepares_has_the_ordinary_timeout(driver: TxnDriver) -> None:
    producer = driver.init()
    with pytest.raises(InvalidTxnState, match="no open transaction"):
        driver.ask(PrepareTransaction("me", producer))
    driver.add(producer, T0, version=2)
    driver.pass_time(TIMEOUT_MS + 1)
    with pytest.raises(ProducerFenced):
        driver.ask(PrepareTransaction("me", producer))
    driver.write_markers()
    with pytest.raises(ProducerFenced):
        driver.ask(PrepareTransaction("me", producer))
    assert driver.txn.state is State.COMPLETE_ABORT
    with pytest.raises(InvalidProducerIdMapping):
        driver.ask(PrepareTransaction("you", producer))


def test_it_takes_no_more_partitions_and_the_next_one_needs_a_new_epoch(driver: TxnDriver) -> None:
    producer = prepared(driver)
    with pytest.raises(InvalidTxnState):
        driver.add(producer, T1, version=2)
    after = driver.end(producer, commits=True, version=2)
    driver.write_markers()
    with pytest.raises(InvalidTxnState):
        driver.add(after, T1, version=2)
    again = driver.init()
    driver.add(again, T1, version=2)
    assert driver.txn.timeout_ms == TIMEOUT_MS


def test_a_new_producer_keeps_it_if_it_says_so(driver: TxnDriver) -> None:
    producer = prepared(driver)
    records = len(driver.log)
    kept = driver.ask(InitProducer("me", TIMEOUT_MS, keep_prepared=True))
    assert kept == KeptTransaction(producer) and len(driver.log) == records
    with pytest.raises(ConcurrentTransactions):
        driver.init()
    (markers,) = driver.write_markers()
    assert not markers.commits
    fresh = driver.ask(InitProducer("me", TIMEOUT_MS, keep_prepared=True))
    assert isinstance(fresh, ProducerIdentity), "there is nothing to keep"
    driver.add(fresh, T0, version=2)
    with pytest.raises(ConcurrentTransactions):
        driver.ask(InitProducer("me", TIMEOUT_MS, keep_prepared=True))  # open, but not prepared


def test_an_ended_id_is_forgotten_on_request(driver: TxnDriver) -> None:
    producer = prepared(driver)
    driver.init("other")
    for _ in range(2):
        with pytest.raises(InvalidTxnState):
            driver.ask(ForgetTransactionalId("me"))
        if driver.txn.is_ongoing:
            driver.end(producer, commits=True, version=2)
    driver.write_markers()
    listed = driver.ask(ListTransactions()).transactions
    assert sorted(name for name, _ in listed) == ["me", "other"]
    driver.ask(ForgetTransactionalId("me"))
    driver.ask(ForgetTransactionalId("me"))
    driver.reload()
    assert set(driver.shard.transactions) == {"other"}
