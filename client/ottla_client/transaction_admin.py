"""Administration of transactions: list, describe, fence producers, find and abort hanging ones. [S]

Used by `Admin`, which has the same methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla_client.cluster import Cluster
from ottla_client.connection import exception_of
from ottla_client.coordinator import Coordinator, passes, refusal
from ottla_client.errors import CannotConnect
from ottla_client.leaders import Producers, abort_transaction, describe_producers
from ottla_core.errors import RequestError, TransactionalIdNotFound
from ottla_core.ids import TopicPartition
from ottla_core.pb import groups_pb2
from ottla_core.pb import transactions_pb2 as pb
from ottla_core.ports.clock import Clock

_PAUSE_S = 0.1
#: For the epoch that fences a producer; no transaction is begun with it.
_FENCING_TIMEOUT_MS = 60_000
#: The timeout with which coordinators mark a prepared transaction (KIP-939).
_PREPARED_TIMEOUT_MS = 2_147_483_647


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    #: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead or PrepareEpochFence.
    state: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    transactional_id: str
    #: As in a listing.
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    #: When the transaction began, or the last one if none is open; None before the first.
    started_ms: int | None
    coordinator_id: int
    #: Where the open transaction has written; also partitions of `__consumer_offsets`.
    partitions: tuple[TopicPartition, ...]

    @property
    def is_prepared(self) -> bool:
        """Its producer has prepared it: another process is about to commit or abort it by name."""
        return self.state == "Ongoing" and self.timeout_ms == _PREPARED_TIMEOUT_MS


class HangingTransaction(NamedTuple):
    """A transaction that is open in a partition, and that no coordinator is going to end there."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    #: Where it begins: `abort_transaction` takes the partition and this offset.
    first_offset: int
    last_timestamp_ms: int


class TransactionAdmin:
    def __init__(self, cluster: Cluster, clock: Clock, timeout_s: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._timeout_s = timeout_s

    def _coordinator(self, transactional_id: str) -> Coordinator:
        kind = groups_pb2.COORDINATOR_TYPE_TRANSACTION
        return Coordinator(self._cluster, self._clock, transactional_id, kind)

    async def list_transactions(
        self, states: Sequence[str], producer_ids: Sequence[int], min_duration_ms: int, prefix: str = ""
    ) -> list[TransactionListing]:
        """Transactions of all brokers: each broker lists those that it coordinates."""
        request = pb.ListTransactionsRequest(
            states=states, producer_ids=producer_ids, min_duration_ms=min_duration_ms, prefix=prefix
        )
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                await self._cluster.refresh([], timeout_s=self._timeout_s)
                return await self._list_once(request, deadline)
            except (RequestError, CannotConnect) as error:
                if not passes(error) or self._clock.monotonic() + _PAUSE_S >= deadline:
                    raise
            await self._clock.sleep(_PAUSE_S)

    async def _list_once(
        self, request: pb.ListTransactionsRequest, deadline: float
    ) -> list[TransactionListing]:
        found: dict[str, TransactionListing] = {}
        for broker in self._cluster.brokers():
            left_s = max(0.001, deadline - self._clock.monotonic())
            answer = await self._cluster.call_at(broker, "ListTransactions", request, left_s)
            error = refusal(answer)
            if error is not None:
                raise error
            for each in answer.transactions:
                found[each.transactional_id] = TransactionListing(
                    each.transactional_id, each.state, each.producer_id, each.producer_epoch
                )
        return [found[name] for name in sorted(found)]

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> list[TransactionDescription]:
        made = []
        for transactional_id in transactional_ids:
            answer = await self._coordinator(transactional_id).ask(
                "DescribeTransactions",
                pb.DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                self._timeout_s,
                _first_refusal,
            )
            made.append(_description(answer.transactions[0]))
        return made

    async def fence_producers(self, transactional_ids: Iterable[str]) -> None:
        for transactional_id in transactional_ids:
            request = pb.InitProducerRequest(
                transactional_id=transactional_id, transaction_timeout_ms=_FENCING_TIMEOUT_MS
            )
            await self._coordinator(transactional_id).ask("InitProducer", request, self._timeout_s)

    async def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        return await describe_producers(self._cluster, self._clock, partitions, timeout_s=self._timeout_s)

    async def find_hanging_transactions(
        self, partitions: Sequence[TopicPartition], min_duration_ms: int
    ) -> list[HangingTransaction]:
        before_ms = self._clock.wall_ms() - min_duration_ms
        suspects = open_transactions(await self.describe_producers(partitions), before_ms)
        if not suspects:
            return []
        listed = await self.list_transactions((), sorted({each.producer_id for each in suspects}), 0)
        known: set[tuple[int, TopicPartition]] = set()
        for each in listed:
            try:
                (found,) = await self.describe_transactions([each.transactional_id])
            except TransactionalIdNotFound:
                continue  # It has expired since it was listed.
            known.update((found.producer_id, tp) for tp in found.partitions)
        left = [each for each in suspects if (each.producer_id, each.partition) not in known]
        if not left:
            return []
        # A transaction that ended meanwhile is unknown to its coordinator, too: only those that are still open hang.
        still = await self.describe_producers(sorted({each.partition for each in left}))
        return sorted(set(left) & set(open_transactions(still, before_ms)))

    async def abort_transaction(self, partition: TopicPartition, first_offset: int) -> None:
        await abort_transaction(
            self._cluster, self._clock, partition, first_offset, timeout_s=self._timeout_s
        )


def open_transactions(producers: Producers, before_ms: int) -> list[HangingTransaction]:
    """The open transactions whose last record is older than this."""
    return [
        HangingTransaction(
            tp, each.producer_id, each.producer_epoch, each.transaction_first_offset, each.last_timestamp_ms
        )
        for tp, known in producers.items()
        for each in known
        if each.transaction_first_offset is not None and each.last_timestamp_ms <= before_ms
    ]


def _first_refusal(answer: Any) -> RequestError | None:
    return next((exception_of(each.error) for each in answer.transactions if each.HasField("error")), None)


def _description(each: pb.DescribedTransaction) -> TransactionDescription:
    return TransactionDescription(
        each.transactional_id,
        each.state,
        each.producer.id,
        each.producer.epoch,
        each.timeout_ms,
        None if each.started_ms < 0 else each.started_ms,
        each.coordinator_id,
        tuple(TopicPartition(topic.topic, number) for topic in each.topics for number in topic.partitions),
    )
