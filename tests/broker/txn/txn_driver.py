"""A shard of transactions with a clock that the test turns, and partitions that take its markers."""

from __future__ import annotations

from typing import Any

from ottla_broker.coordination.shard import Decision, Now, StateRecord
from ottla_broker.metrics import TransactionsProbe
from ottla_broker.requests import ProducerIdentity
from ottla_broker.transactions_config import TransactionsConfig
from ottla_broker.txn.messages import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    NeedsProducerId,
    WriteMarkers,
)
from ottla_broker.txn.shard import TransactionShard
from ottla_broker.txn.transaction import Transaction
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

WALL_MS = 1_700_000_000_000
TIMEOUT_MS = 10_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class TxnDriver:
    def __init__(self) -> None:
        self.probe = TransactionsProbe()
        self.log: list[StateRecord] = []
        #: Effects that have begun, in order.
        self.effects: list[WriteMarkers] = []
        self.replies: dict[int, Any] = {}
        self.now_ms = 0
        self._ticket = 0
        self._fresh_id = 99
        self.shard = TransactionShard(TransactionsConfig(), self.probe)
        self._carry_out(self.shard.loaded(self.now))

    @property
    def now(self) -> Now:
        return Now(WALL_MS + self.now_ms, self.now_ms)

    def ask(self, request: Any) -> Any:
        self._ticket += 1
        self._carry_out(self.shard.handle(request, self._ticket, self.now))
        reply = self.replies.pop(self._ticket, None)
        if isinstance(reply, NeedsProducerId):
            self._fresh_id += 1
            fields = {name: getattr(request, name) for name in request.__slots__} | {
                "fresh_id": self._fresh_id
            }
            return self.ask(type(request)(**fields))
        if isinstance(reply, RequestError):
            raise reply
        return reply

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (next_ms := self.shard.timers.next_ms()) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self._carry_out(self.shard.expire(self.now))
        self.now_ms = end_ms

    def write_markers(self) -> list[WriteMarkers]:
        """All partitions take the markers that are due."""
        written, self.effects = self.effects, []
        for each in written:
            self.ask(MarkersWritten(each.transactional_id, each.producer))
        return written

    def reload(self) -> None:
        """A new coordinator takes over: everything that no record holds is gone."""
        self.effects.clear()
        self.shard = TransactionShard(TransactionsConfig(), self.probe)
        for record in self.log:
            self.shard.replay(record)
        self._carry_out(self.shard.loaded(self.now))

    def _carry_out(self, decision: Decision) -> None:
        for record in decision.records:
            assert isinstance(record, StateRecord)
            self.shard.replay(record)
            self.log.append(record)
        self.effects += decision.effects
        self.replies.update(decision.replies)

    # ------------------------------------------------------------------ as a producer

    def init(self, name: str = "me", current: ProducerIdentity | None = None) -> ProducerIdentity:
        made: ProducerIdentity = self.ask(InitProducer(name, TIMEOUT_MS, current))
        return made

    def add(self, producer: ProducerIdentity, *partitions: TopicPartition, version: int = 0) -> None:
        self.ask(AddPartitions("me", producer, partitions, version))

    def end(self, producer: ProducerIdentity, *, commits: bool, version: int = 0) -> ProducerIdentity:
        made: ProducerIdentity = self.ask(EndTransaction("me", producer, commits, version))
        return made

    @property
    def txn(self) -> Transaction:
        return self.shard.transactions["me"]
