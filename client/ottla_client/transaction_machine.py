"""State machine of a transactional producer: which calls are allowed when, and what an error means. [P]

Theory of operation (transactions v2, KIP-890). The producer gets an identity, a producer id and an epoch, from the
coordinator of its transactional id. A transaction is open from `begin` until it is committed or aborted; it exists on
the brokers from its first batch or offset commit on. Each end gives the identity for the next transaction, with another
epoch, so batches of an ended transaction that are still on the wire are refused by the brokers.

Errors are of three kinds:
* retriable: handled below this machine, in `producer_machine` and `coordinator`.
* abortable: a batch was not written, offsets were not committed. Only an abort leaves this state.
* fatal: another producer has the transactional id, or the coordinator has aborted the transaction because it took too
  long. Nothing but a new producer helps.

Invariants:
T1. A commit is sent only if all batches of the transaction were acknowledged and all its offsets were taken.
T2. After a commit was sent, no abort is: its outcome may be unknown (a timeout), and then only a commit finds it out.
T3. After a fatal error no call reaches the coordinator.
"""

from __future__ import annotations

from enum import Enum

from ottla_client.errors import ClientError, NotInTransaction, TransactionFailed
from ottla_core.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    RequestError,
    TransactionalIdAuthorizationFailed,
)

_FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)
_FATAL = (*_FENCED, InvalidTxnState, TransactionalIdAuthorizationFailed)


class Phase(Enum):
    STARTING = "has no producer id yet"
    READY = "has no open transaction"
    OPEN = "has an open transaction"
    FAILED = "has a transaction that has to be aborted"
    COMMITTING = "is committing"
    ABORTING = "is aborting"
    PREPARED = "has prepared its last transaction; close it, and end the transaction by name"
    FENCED = "cannot be used any more"


class TransactionMachine:
    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.phase = Phase.STARTING
        #: (producer id, epoch) of the current transaction, or of the next one.
        self.identity = (-1, -1)
        #: Why the transaction has to be aborted, or the producer cannot be used any more.
        self._error: Exception | None = None
        #: The brokers know the transaction: something of it was acknowledged.
        self._is_known = False

    @property
    def is_open(self) -> bool:
        """True while the coordinator may have an undecided transaction of this producer."""
        return self.phase in (Phase.OPEN, Phase.FAILED, Phase.ABORTING)

    # ------------------------------------------------------------------ calls of the user

    def begin(self) -> None:
        if self.phase is Phase.OPEN:
            raise ClientError("A transaction is open already; commit or abort it first.")
        self._refuse_if_failed()
        if self.phase is Phase.COMMITTING:
            raise ClientError(
                "It is unknown whether the last transaction was committed; call commit() again."
            )
        if self.phase is not Phase.READY:
            raise ClientError(f"The producer {self.phase.value}; it cannot begin a transaction.")
        self.phase = Phase.OPEN
        self._is_known = False

    def check_write(self) -> None:
        """Raises unless records and offsets may be sent now."""
        if self.phase is Phase.OPEN:
            return
        self._refuse_if_failed()
        raise NotInTransaction(
            "A producer with a transactional_id sends in transactions only: `async with producer.transaction():`, "
            "or call begin()."
        )

    def check_end(self) -> None:
        """Raises unless a commit may be tried."""
        self._refuse_if_failed()
        if self.phase not in (Phase.OPEN, Phase.COMMITTING):
            raise NotInTransaction("There is no open transaction to commit; call begin().")

    def commit(self) -> bool:
        """Everything of the transaction is settled: commit it (T1). False if there is nothing to commit."""
        self.check_end()
        if not self._is_known:
            self.phase = Phase.READY
            return False
        self.phase = Phase.COMMITTING
        return True

    def check_prepare(self) -> bool:
        """Everything of the transaction is settled: prepare it (T1). False if there is nothing to prepare."""
        self.check_end()
        if self.phase is Phase.COMMITTING:
            raise ClientError("The commit was sent already; call commit() again to learn its outcome.")
        if not self._is_known:
            self.phase = Phase.READY
        return self._is_known

    def abort(self) -> None:
        if self.phase is Phase.FENCED:
            self._refuse_if_failed()
        if self.phase is Phase.COMMITTING:
            raise ClientError("The commit was sent already; call commit() again to learn its outcome.")
        if not self.is_open:
            raise NotInTransaction("There is no open transaction to abort; call begin().")
        self.phase = Phase.ABORTING

    def _refuse_if_failed(self) -> None:
        if self.phase is Phase.FENCED and self._error is not None:
            raise self._error
        if self.phase is Phase.FAILED:
            raise TransactionFailed(
                f"The transaction failed and has to be aborted, then it may be repeated: {self._error}"
            ) from self._error

    # ------------------------------------------------------------------ events from the shell

    def initialized(self, producer_id: int, epoch: int) -> None:
        self.identity = (producer_id, epoch)
        self.phase = Phase.READY

    def prepared(self) -> None:
        """The transaction outlives this producer now, which neither continues nor ends it."""
        self.phase = Phase.PREPARED

    def written(self) -> None:
        """A batch was acknowledged, or offsets were taken."""
        self._is_known = True

    def ended(self, producer_id: int, epoch: int) -> None:
        """The coordinator has decided the transaction."""
        self.identity = (producer_id, epoch)
        self.phase = Phase.READY
        self._error = None

    def failed(self, error: Exception) -> Exception:
        """A call or a batch failed for good. Returns the error for the user."""
        if self.phase is Phase.FENCED:
            return self._error or error
        if isinstance(error, _FATAL):
            self._error = self._fatal(error)
            self.phase = Phase.FENCED
            return self._error
        if self.phase is Phase.OPEN or (self.phase is Phase.COMMITTING and _is_refusal(error)):
            self._error = error
            self.phase = Phase.FAILED
        return error

    def _fatal(self, error: RequestError) -> RequestError:
        if isinstance(error, _FENCED):
            return ProducerFenced(
                f"Another producer has taken the transactional id {self.transactional_id!r}, or the transaction took "
                f"longer than transaction_timeout_ms. Close this producer. ({error.message})"
            )
        return error


def _is_refusal(error: Exception) -> bool:
    """True if the coordinator has answered and decided nothing (T2)."""
    return isinstance(error, RequestError) and not error.retriable and error.code != RequestError.code
