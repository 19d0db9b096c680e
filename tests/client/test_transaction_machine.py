"""Which calls a transactional producer allows when, and what errors mean: T1 to T3."""

from __future__ import annotations

import pytest

from ottla_client.accumulator import Accumulator, Batch
from ottla_client.errors import ClientError, CommitFailed, NotInTransaction, ProducerFenced, TransactionFailed
from ottla_client.producer_machine import Policy, ProducerMachine
from ottla_client.transaction_machine import Phase, TransactionMachine
from ottla_core.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    TransactionAbortable,
)
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import header_at


@pytest.fixture
def machine() -> TransactionMachine:
    made = TransactionMachine("x")
    made.initialized(7, 0)
    return made


def test_writes_are_refused_outside_of_transactions(machine: TransactionMachine) -> None:
    with pytest.raises(NotInTransaction, match="begin"):
        machine.check_write()
    machine.begin()
    machine.check_write()
    with pytest.raises(ClientError, match="open already"):
        machine.begin()
    machine.written()
    assert machine.commit()
    with pytest.raises(NotInTransaction):
        machine.check_write()
    machine.ended(7, 1)
    assert (machine.identity, machine.phase) == ((7, 1), Phase.READY)
    for end in (machine.commit, machine.abort):
        with pytest.raises(NotInTransaction):
            end()


def test_a_transaction_that_no_broker_knows_is_not_committed_there(machine: TransactionMachine) -> None:
    machine.begin()
    assert not machine.commit()
    assert (machine.identity, machine.phase) == ((7, 0), Phase.READY)


def test_a_failed_batch_makes_the_commit_fail(machine: TransactionMachine) -> None:
    machine.begin()
    machine.written()
    machine.failed(MessageTooLarge("Too large."))
    for call in (machine.commit, machine.check_write, machine.begin):
        with pytest.raises(TransactionFailed, match="Too large"):
            call()
    machine.abort()
    machine.ended(7, 1)
    machine.begin()
    machine.check_write()


def test_offsets_of_a_member_that_lost_its_partitions_can_be_aborted(machine: TransactionMachine) -> None:
    machine.begin()
    assert isinstance(machine.failed(CommitFailed("Lost.")), CommitFailed)
    machine.abort()


def test_fencing_is_fatal(machine: TransactionMachine) -> None:
    machine.begin()
    machine.failed(MessageTooLarge())
    error = machine.failed(InvalidProducerEpoch("Newer epoch."))
    assert isinstance(error, ProducerFenced) and "Newer epoch" in str(error)
    for call in (machine.check_write, machine.commit, machine.abort, machine.begin):
        with pytest.raises(ProducerFenced):
            call()
    assert not machine.is_open


def test_a_commit_without_an_answer_can_only_be_committed_again(machine: TransactionMachine) -> None:
    machine.begin()
    machine.written()
    machine.commit()
    machine.failed(RequestTimedOut())
    assert not machine.is_open
    with pytest.raises(ClientError, match="commit"):
        machine.abort()
    with pytest.raises(ClientError, match="commit"):
        machine.begin()
    assert machine.commit()


def test_a_refused_commit_can_be_aborted(machine: TransactionMachine) -> None:
    machine.begin()
    machine.written()
    machine.commit()
    machine.failed(TransactionAbortable())
    machine.abort()


class Bench:
    """A producer machine in a transaction, with one partition."""

    def __init__(self) -> None:
        self.transaction = TransactionMachine("x")
        self.accumulator = Accumulator(
            batch_bytes=80,
            linger_s=0,
            buffer_bytes=1 << 20,
            delivery_timeout_s=100,
            record_bytes_max=1 << 16,
            compression=0,
        )
        self.machine = ProducerMachine(self.accumulator, Policy(backoff_s=1.0), lambda: 0.5, self.transaction)
        self.lane = self.accumulator.lane(TopicPartition("t", 0))
        self.machine.leaders_changed("t", [0])
        self.transaction.initialized(7, 0)
        self.machine.begin_epoch(7, 0)
        self.transaction.begin()

    def put(self) -> Batch:
        batch = self.accumulator.append(self.lane, 1, None, b"x" * 30, (), 0.0)
        assert batch is not None
        return batch

    def drain(self, now: float = 0.0) -> list[Batch]:
        return [batch for send in self.machine.drain(now) for batch in send.batches]


def test_batches_of_each_transaction_start_at_sequence_0_of_its_epoch() -> None:
    bench = Bench()
    bench.put()
    bench.put()
    sent = bench.drain()
    headers = [header_at(batch.payload) for batch in sent]
    assert [(h.is_transactional, h.producer_epoch, h.base_sequence) for h in headers] == [
        (True, 0, 0),
        (True, 0, 1),
    ]
    for batch in sent:
        bench.machine.acknowledged(batch, 0, -1)
    assert bench.transaction.commit()
    bench.transaction.ended(7, 1)
    bench.machine.begin_epoch(7, 1)
    bench.transaction.begin()
    bench.put()
    (batch,) = bench.drain()
    header = header_at(batch.payload)
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


def test_a_batch_out_of_order_fails_the_transaction_instead_of_being_renumbered() -> None:
    bench = Bench()
    batch = bench.put()
    bench.drain()
    bench.machine.refused(batch, OutOfOrderSequenceNumber(), 0.0)
    assert batch.outcome is not None and isinstance(batch.outcome.error, OutOfOrderSequenceNumber)
    with pytest.raises(TransactionFailed):
        bench.transaction.commit()


def test_a_batch_out_of_order_behind_one_that_is_retried_is_retried_with_its_number() -> None:
    bench = Bench()
    first, second = bench.put(), bench.put()
    assert bench.drain() == [first, second]
    bench.machine.refused(first, ConcurrentTransactions(), 0.0)
    bench.machine.refused(second, OutOfOrderSequenceNumber(), 0.0)
    assert bench.drain(0.03) == [first]
    bench.machine.acknowledged(first, 0, -1)
    assert bench.drain(0.03) == [second] and header_at(second.payload).base_sequence == 1
    bench.machine.acknowledged(second, 1, -1)
    assert bench.transaction.commit()


def test_the_markers_of_the_last_transaction_are_waited_for_briefly() -> None:
    bench = Bench()
    batch = bench.put()
    bench.drain()
    bench.machine.refused(batch, ConcurrentTransactions(), 0.0)
    assert bench.drain(0.01) == []
    assert bench.drain(0.03) == [batch]


def test_an_abort_fails_all_batches_and_ignores_their_late_answers() -> None:
    bench = Bench()
    flying = bench.put()
    bench.drain()
    waiting = bench.put()
    bench.transaction.abort()
    bench.machine.abandon(TransactionFailed("Aborted."))
    for batch in (flying, waiting):
        assert batch.outcome is not None and isinstance(batch.outcome.error, TransactionFailed)
    assert bench.accumulator.used_bytes == 0 and not bench.lane.pending
    bench.transaction.ended(7, 1)
    bench.machine.begin_epoch(7, 1)
    bench.transaction.begin()
    bench.machine.refused(flying, InvalidProducerEpoch(), 0.0)
    bench.transaction.check_write()
    after = bench.put()
    assert bench.drain() == [after]
