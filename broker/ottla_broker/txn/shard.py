"""The transactions of one partition of `__transaction_state`, as a shard of the coordinator runtime. [P]

The rules are in `machine`. Soft state, lost with the leadership: timers, and the epoch with which a producer may repeat
InitProducerId (as in Kafka). An open transaction's timer starts again at its start time when the shard is loaded, and
the markers of a decided one are written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ottla_broker.coordination.fields import Undecodable
from ottla_broker.coordination.metadata_change import MetadataChange
from ottla_broker.coordination.shard import Decision, Now, StateRecord, Ticket, TransactionMarker
from ottla_broker.coordination.timers import Timers
from ottla_broker.metrics import TransactionsProbe
from ottla_broker.transactions_config import TransactionsConfig
from ottla_broker.txn import machine
from ottla_broker.txn.messages import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    ForgetTransactionalId,
    InitProducer,
    KeptTransaction,
    ListedTransaction,
    ListReply,
    ListTransactions,
    MarkersWritten,
    NeedsProducerId,
    PartitionsReply,
    PrepareTransaction,
    VerifyPartitions,
    WriteMarkers,
)
from ottla_broker.txn.records import read_key, read_value, transaction_record, transaction_tombstone
from ottla_broker.txn.transaction import NO_EPOCH, State, Transaction
from ottla_core.errors import (
    ConcurrentTransactions,
    InvalidRequest,
    InvalidTxnState,
    PolicyViolation,
    TransactionalIdNotFound,
)

_EXPIRE_IDS = ("expire-ids",)
_TIMEOUT = "timeout"
#: As much as a topic takes by default, less what the batch around the record needs.
_RECORD_BYTES_MAX = 1_000_000
#: What an id and a partition of an open transaction cost in memory: objects, timers, keys; topics' names are shared.
_TRANSACTION_BYTES, _PARTITION_BYTES = 1024, 128


class TransactionShard:
    def __init__(
        self,
        settings: TransactionsConfig,
        probe: TransactionsProbe,
        held_everywhere: Callable[[], int] | None = None,
    ) -> None:
        """`held_everywhere` sums the bytes of all shards of the broker."""
        self._settings = settings
        #: Memory of the transactions, about.
        self.bytes = 0
        self._held_everywhere = held_everywhere or (lambda: self.bytes)
        self._probe = probe
        self.timers = Timers()
        self.transactions: dict[str, Transaction] = {}
        #: By transactional id: the epoch before the current one, for a producer that repeats InitProducerId.
        self._last_epochs: dict[str, int] = {}
        self._handlers: dict[type, Callable[[Any, Ticket, Now, Decision], None]] = {
            InitProducer: self._init,
            AddPartitions: self._add,
            VerifyPartitions: self._verify,
            PrepareTransaction: self._prepare,
            EndTransaction: self._end,
            ForgetTransactionalId: self._forget,
            MarkersWritten: self._markers_written,
            ListTransactions: self._list,
            DescribeTransaction: self._describe,
        }

    # ------------------------------------------------------------------ the contract

    def handle(self, request: Any, ticket: Ticket, now: Now) -> Decision:
        out = Decision()
        try:
            self._handlers[type(request)](request, ticket, now, out)
        except machine.NoProducerId:
            out.reply(ticket, NeedsProducerId())
        return out

    def expire(self, now: Now) -> Decision:
        out = Decision()
        for key in self.timers.due(now.monotonic_ms):
            if key == _EXPIRE_IDS:
                self._expire_ids(now, out)
            elif isinstance(key, tuple):
                self._time_is_up(key[1], now, out)
        return out

    def on_metadata(self, change: MetadataChange, now: Now) -> Decision:
        return Decision()

    def replay(self, record: StateRecord) -> None:
        try:
            transactional_id = read_key(record.key)
            if transactional_id is None:
                return
            if record.value is None:
                self.bytes -= _held_bytes(transactional_id, self.transactions.pop(transactional_id, None))
                self._last_epochs.pop(transactional_id, None)
            else:
                txn, before = read_value(record.value), self.transactions.get(transactional_id)
                self.transactions[transactional_id] = txn
                self.bytes += _held_bytes(transactional_id, txn) - _held_bytes(transactional_id, before)
        except Undecodable:
            # Ottla never writes such a record; one unreadable record must not block all the others.
            self._probe.records_skipped += 1

    def replay_marker(self, marker: TransactionMarker) -> None:
        """No transaction writes to this topic."""

    def loaded(self, now: Now) -> Decision:
        out = Decision()
        for transactional_id, txn in self.transactions.items():
            self._follow(transactional_id, txn, now, out)
        self.timers.set(_EXPIRE_IDS, now.monotonic_ms + self._settings.ids_check_interval_ms)
        return out

    def states(self) -> Counter[State]:
        """Number of transactional ids by state."""
        return Counter(txn.state for txn in self.transactions.values())

    # ------------------------------------------------------------------ requests

    def _init(self, request: InitProducer, ticket: Ticket, now: Now, out: Decision) -> None:
        name = request.transactional_id
        last_epoch = self._last_epochs.get(name, NO_EPOCH)
        before = self.transactions.get(name)
        txn, last_epoch = machine.init(before, last_epoch, request, now.wall_ms)
        if txn is not before:
            if before is None:
                self._check_room(_held_bytes(name, txn))
            self._put(name, txn, now, out)
        self._last_epochs[name] = last_epoch
        if txn.is_prepared:
            self._probe.fenced += 1
            out.refuse(ticket, ConcurrentTransactions("The open transaction is being aborted; try again."))
        else:
            out.reply(ticket, KeptTransaction(txn.producer) if txn.is_ongoing else txn.producer)

    def _add(self, request: AddPartitions, ticket: Ticket, now: Now, out: Decision) -> None:
        name = request.transactional_id
        before = self.transactions.get(name)
        txn = machine.add(before, request, now.wall_ms)
        if txn is not None:
            self._check_room(_held_bytes(name, txn) - _held_bytes(name, before))
            self._put(name, txn, now, out)
        out.reply(ticket, PartitionsReply((None,) * len(request.partitions)))

    def _check_room(self, more: int) -> None:
        """Only new ids and partitions are refused: what a log holds is loaded, and transactions can always end."""
        limit = self._settings.state_max_bytes
        if more > 0 and (held := self._held_everywhere()) + more > limit:
            raise PolicyViolation(
                f"The transactions of this coordinator hold {held} bytes; transaction.state.max.bytes is {limit}. "
                "End transactions, forget transactional ids that are not used, or raise the limit."
            )

    def _verify(self, request: VerifyPartitions, ticket: Ticket, now: Now, out: Decision) -> None:
        errors = machine.verify(self.transactions.get(request.transactional_id), request)
        out.reply(ticket, PartitionsReply(errors))

    def _prepare(self, request: PrepareTransaction, ticket: Ticket, now: Now, out: Decision) -> None:
        name = request.transactional_id
        txn = machine.prepare(self.transactions.get(name), request, now.wall_ms)
        if txn is not None:
            self._put(name, txn, now, out)
        out.reply(ticket, request.producer)

    def _forget(self, request: ForgetTransactionalId, ticket: Ticket, now: Now, out: Decision) -> None:
        txn = self.transactions.get(request.transactional_id)
        if txn is not None and not txn.is_idle:
            raise InvalidTxnState("The transaction has not ended; commit or abort it first.")
        if txn is not None:
            out.records.append(transaction_tombstone(request.transactional_id))
        out.reply(ticket, request.transactional_id)

    def _end(self, request: EndTransaction, ticket: Ticket, now: Now, out: Decision) -> None:
        name = request.transactional_id
        before = self.transactions.get(name)
        txn = machine.end(before, request, now.wall_ms) or before
        if txn is not None and txn is not before:
            self._put(name, txn, now, out)
        if txn is not None:
            out.reply(ticket, txn.next_producer)

    def _markers_written(self, request: MarkersWritten, ticket: Ticket, now: Now, out: Decision) -> None:
        name = request.transactional_id
        txn = self.transactions.get(name)
        if txn is None or not txn.is_prepared or txn.producer != request.producer:
            return
        if request.missing:
            out.effects.append(_markers(name, txn, request.missing))
            return
        if txn.commits:
            self._probe.committed += 1
        else:
            self._probe.aborted += 1
        self._put(name, machine.complete(txn, now.wall_ms), now, out)

    def _list(self, request: ListTransactions, ticket: Ticket, now: Now, out: Decision) -> None:
        out.reply(ticket, ListReply(tuple(self.transactions.items())))

    def _describe(self, request: DescribeTransaction, ticket: Ticket, now: Now, out: Decision) -> None:
        txn = self.transactions.get(request.transactional_id)
        if txn is None:
            raise TransactionalIdNotFound()
        out.reply(ticket, ListedTransaction(request.transactional_id, txn))

    # ------------------------------------------------------------------ what follows from a new state

    def _put(self, name: str, txn: Transaction, now: Now, out: Decision) -> None:
        record = transaction_record(name, txn)
        if len(record.value or b"") > _RECORD_BYTES_MAX:
            raise InvalidRequest(
                f"A transaction with {len(txn.partitions)} partitions is too large; write to fewer in each."
            )
        out.records.append(record)
        self._follow(name, txn, now, out)

    def _follow(self, name: str, txn: Transaction, now: Now, out: Decision) -> None:
        key = (_TIMEOUT, name)
        if txn.is_ongoing:
            since_ms, timeout_ms = txn.started_ms, txn.timeout_ms
            if txn.is_two_phase:
                since_ms, timeout_ms = txn.updated_ms, self._settings.two_phase_max_timeout_ms
            left_ms = since_ms + timeout_ms - now.wall_ms
            # A wall clock that was set back must not keep a transaction open for longer than its timeout.
            self.timers.set(key, now.monotonic_ms + min(max(left_ms, 0), timeout_ms))
        else:
            self.timers.cancel(key)
        if txn.is_prepared:
            out.effects.append(_markers(name, txn, txn.partitions))

    def _time_is_up(self, name: str, now: Now, out: Decision) -> None:
        txn = self.transactions.get(name)
        if txn is not None and txn.is_ongoing:
            self._probe.timed_out += 1
            self._last_epochs.pop(name, None)
            self._put(name, machine.abort(txn, now.wall_ms), now, out)

    def _expire_ids(self, now: Now, out: Decision) -> None:
        self.timers.set(_EXPIRE_IDS, now.monotonic_ms + self._settings.ids_check_interval_ms)
        for name, txn in self.transactions.items():
            if txn.is_idle and now.wall_ms - txn.updated_ms >= self._settings.id_expiration_ms:
                out.records.append(transaction_tombstone(name))


def _held_bytes(name: str, txn: Transaction | None) -> int:
    return 0 if txn is None else _TRANSACTION_BYTES + len(name) + _PARTITION_BYTES * len(txn.partitions)


def _markers(name: str, txn: Transaction, partitions: frozenset[Any]) -> WriteMarkers:
    return WriteMarkers(name, txn.producer, txn.commits, partitions)
