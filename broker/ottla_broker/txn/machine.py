"""What becomes of a transaction: functions of (transaction, request, time). [P]

Theory of operation (KIP-98, KIP-360, KIP-890):

* T1: a transaction is decided by one record, PREPARE_COMMIT or PREPARE_ABORT, and never decided twice. Markers follow
  from that record, so whoever coordinates after a crash writes the same ones.
* T2: an epoch is given to one producer. InitProducerId and a timeout move to the next epoch, which fences the producer
  before; an open transaction is aborted under that epoch first.
* T3: with transactions v2 the end of a transaction moves to the next epoch, too, and markers carry it. So no late batch
  of an ended transaction is accepted in a partition.
* T4: a request that came again (a lost response) has the outcome of the first one, or is refused.
* T5: a prepared transaction takes no further partitions and has no timeout of its producer's, only the broker's bound.
  Whoever knows its id, producer id and epoch ends it, and its producer's next one starts with InitProducerId.

A function returns the next transaction, or None if nothing changes; it raises `RequestError` to refuse.
"""

from __future__ import annotations

from dataclasses import replace

from ottla_broker.requests import ProducerIdentity
from ottla_broker.txn.messages import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    PrepareTransaction,
    VerifyPartitions,
)
from ottla_broker.txn.transaction import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    TRANSACTIONS_V2,
    TWO_PHASE_TIMEOUT_MS,
    State,
    Transaction,
)
from ottla_core.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    RequestError,
    TransactionAbortable,
    invariant,
)


class NoProducerId(Exception):
    """The next state needs a new producer id, and the request brought none."""


# ---------------------------------------------------------------------- producers


def init(
    txn: Transaction | None, last_epoch: int, request: InitProducer, now_ms: int
) -> tuple[Transaction, int]:
    """The transaction with the producer's new epoch, and the epoch before it if the producer may retry with that.

    An ongoing transaction becomes PREPARE_ABORT instead; the caller refuses the request until that is complete.
    """
    if txn is None:
        made = Transaction(_fresh(request.fresh_id), 0, request.timeout_ms, State.EMPTY, frozenset(), now_ms)
        return made, NO_EPOCH
    current = request.current
    if current is not None and not _may_continue(txn, current):
        raise ProducerFenced()
    if txn.is_prepared:
        raise ConcurrentTransactions()
    if txn.is_ongoing and txn.is_two_phase and request.keep_prepared:
        return txn, last_epoch
    if txn.is_ongoing:
        return abort(txn, now_ms), NO_EPOCH
    idle = replace(
        txn,
        state=State.EMPTY,
        partitions=frozenset(),
        timeout_ms=request.timeout_ms,
        updated_ms=now_ms,
        started_ms=NO_TIME,
    )
    if txn.is_exhausted and (current is None or current.producer_epoch == txn.producer_epoch):
        fresh = _fresh(request.fresh_id)
        return replace(
            idle, producer_id=fresh, producer_epoch=0, previous_producer_id=txn.producer_id
        ), NO_EPOCH
    if current is None:
        return replace(idle, producer_epoch=txn.producer_epoch + 1), NO_EPOCH
    if current.producer_epoch == txn.producer_epoch:
        return replace(idle, producer_epoch=txn.producer_epoch + 1), txn.producer_epoch
    if current.producer_epoch == last_epoch or current.producer_id != txn.producer_id:
        return (
            idle,
            last_epoch,
        )  # T4: no other producer was initialized since, else `last_epoch` would be unknown.
    raise ProducerFenced()


def _may_continue(txn: Transaction, current: ProducerIdentity) -> bool:
    if current.producer_id == txn.producer_id:
        return True
    # T4: the response with the new producer id was lost.
    was_last = current.producer_epoch >= EPOCH_MAX - 1
    return current.producer_id == txn.previous_producer_id and was_last and txn.producer_epoch == 0


def _fresh(fresh_id: int | None) -> int:
    if fresh_id is None:
        raise NoProducerId
    return fresh_id


# ---------------------------------------------------------------------- writing


def add(txn: Transaction | None, request: AddPartitions, now_ms: int) -> Transaction | None:
    txn = _open_to(txn, request.producer)
    wanted = frozenset(request.partitions)
    if txn.is_ongoing:
        if wanted <= txn.partitions:
            return None
        return replace(
            txn,
            partitions=txn.partitions | wanted,
            updated_ms=now_ms,
            client_version=request.client_version,
        )
    return replace(
        txn,
        state=State.ONGOING,
        partitions=wanted,
        updated_ms=now_ms,
        started_ms=now_ms,
        client_version=request.client_version,
    )


def verify(txn: Transaction | None, request: VerifyPartitions) -> tuple[RequestError | None, ...]:
    """Why each partition must not be written to."""
    txn = _open_to(txn, request.producer)
    known = txn.partitions if txn.is_ongoing else frozenset()
    refusal = TransactionAbortable("The partition is not part of the transaction; abort the transaction.")
    return tuple(None if tp in known else refusal for tp in request.partitions)


def _open_to(txn: Transaction | None, producer: ProducerIdentity) -> Transaction:
    """The transaction, if it can be extended by this producer."""
    if txn is None or txn.producer_id != producer.producer_id:
        raise InvalidProducerIdMapping()
    if txn.producer_epoch != producer.producer_epoch:
        raise ProducerFenced()
    if txn.is_prepared:
        raise ConcurrentTransactions()
    if txn.is_two_phase:
        raise InvalidTxnState(
            "The transaction was prepared; end it, and initialize the producer for the next one."
        )
    return txn


# ---------------------------------------------------------------------- ending


def prepare(txn: Transaction | None, request: PrepareTransaction, now_ms: int) -> Transaction | None:
    """The transaction, held open until somebody ends it by name (T5); None if it was prepared before."""
    if txn is None or txn.producer_id != request.producer.producer_id:
        raise InvalidProducerIdMapping()
    if txn.producer_epoch != request.producer.producer_epoch:
        raise ProducerFenced()
    if not txn.is_ongoing:
        raise InvalidTxnState("There is no open transaction to prepare.")
    if txn.is_two_phase:
        return None
    return replace(txn, timeout_ms=TWO_PHASE_TIMEOUT_MS, updated_ms=now_ms)


def end(txn: Transaction | None, request: EndTransaction, now_ms: int) -> Transaction | None:
    """The decided transaction, or None if it was decided so before."""
    if txn is None:
        raise InvalidProducerIdMapping()
    v2 = request.client_version >= TRANSACTIONS_V2
    if v2 and _came_again(txn, request.producer):
        _check_decided(txn, request.commits)
        return None
    if txn.producer_id != request.producer.producer_id:
        raise InvalidProducerIdMapping()
    if txn.producer_epoch != request.producer.producer_epoch:
        raise ProducerFenced()
    if txn.is_ongoing:
        decided = replace(txn, client_version=request.client_version)
        return _decide(decided, request.commits, now_ms, bump=v2, fresh_id=request.fresh_id)
    if not v2:
        _check_decided(txn, request.commits)
        return None
    if txn.is_prepared:
        raise ConcurrentTransactions()
    if request.commits:
        raise InvalidTxnState("There is no transaction to commit.")
    # Nothing was written. The abort still ends the producer's epoch (T3), as its client expects.
    empty = replace(txn, partitions=frozenset(), started_ms=now_ms, client_version=request.client_version)
    return complete(_decide(empty, False, now_ms, bump=True, fresh_id=request.fresh_id), now_ms)


def _came_again(txn: Transaction, producer: ProducerIdentity) -> bool:
    """True if the producer's epoch is the one that the last decision ended (T3, T4)."""
    if txn.client_version < TRANSACTIONS_V2 or txn.state in (State.EMPTY, State.ONGOING):
        return False
    before = ProducerIdentity(txn.producer_id, txn.producer_epoch - 1)
    if txn.producer_epoch == 0:
        before = ProducerIdentity(txn.previous_producer_id, EPOCH_MAX - 1)
    return producer == before


def _check_decided(txn: Transaction, commits: bool) -> None:
    """Refuse unless the transaction has ended so before (T4)."""
    if txn.state is State.EMPTY:
        raise InvalidTxnState("There is no transaction to end.")
    if txn.commits != commits:
        raise InvalidTxnState(f"The transaction is already {'committed' if txn.commits else 'aborted'}.")
    if txn.is_prepared:
        raise ConcurrentTransactions()


def abort(txn: Transaction, now_ms: int) -> Transaction:
    """The coordinator aborts the transaction, and fences its producer (T2)."""
    return _decide(txn, False, now_ms, bump=True, fresh_id=NO_PRODUCER_ID)


def _decide(txn: Transaction, commits: bool, now_ms: int, *, bump: bool, fresh_id: int | None) -> Transaction:
    next_id = _fresh(fresh_id) if bump and txn.is_exhausted else NO_PRODUCER_ID
    return replace(
        txn,
        state=State.PREPARE_COMMIT if commits else State.PREPARE_ABORT,
        producer_epoch=min(txn.producer_epoch + 1, EPOCH_MAX) if bump else txn.producer_epoch,
        next_producer_id=next_id,
        updated_ms=now_ms,
    )


def complete(txn: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    invariant(txn.is_prepared, f"a transaction in state {txn.state.title} is completed")
    done = replace(txn, state=txn.completed_state, partitions=frozenset(), updated_ms=now_ms)
    if txn.next_producer_id == NO_PRODUCER_ID:
        return done
    return replace(
        done,
        producer_id=txn.next_producer_id,
        producer_epoch=0,
        previous_producer_id=txn.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
