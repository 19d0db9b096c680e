"""Checks produce requests of transactions with their coordinator before the first append (rule 21). [S]

* V1: a batch that continues a transaction that its partition knows as open is not verified again.
* V2: the first batch of a transaction in a partition is verified with the coordinator; for a client with transactions
  v2 the coordinator adds the partition to the transaction.
* V3: time passes between the answer and the append. If a marker of the producer was written meanwhile, the transaction
  is over and the append is refused; else it would begin a transaction that nothing ends.
* V4: the coordinator confirms a partition only if its own image shows the topic that the leader serves. Else it would
  take the partition for deleted, and drop the marker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ottla_broker.log.producers import ProducerStates
from ottla_broker.partition.host import PartitionHost
from ottla_broker.requests import ProducerIdentity, Write
from ottla_core.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    RequestError,
    RequestTimedOut,
    ThrottlingQuotaExceeded,
    TransactionAbortable,
)
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import HEADER_BYTES, BatchHeader, header_at

#: What a producer would not understand as an answer to Produce, but may repeat the request after.
_RETRIABLE = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    RequestTimedOut,
    ThrottlingQuotaExceeded,
)


class AsksCoordinator(Protocol):
    def partitions_anywhere(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Awaitable[Sequence[RequestError | None]]: ...


class TransactionVerifying:
    def __init__(self, host: PartitionHost, coordinator: AsksCoordinator) -> None:
        self._host = host
        self._coordinator = coordinator

    async def verify(
        self, transactional_id: str, writes: Sequence[Write], adds_partitions: bool
    ) -> list[Write]:
        """The writes, each with its check or its refusal."""
        checked: list[Write] = []
        unknown: dict[ProducerIdentity, list[int]] = {}
        for write in writes:
            try:
                producer, producers = self._look(write)
            except RequestError as error:
                checked.append(write._replace(refusal=write.refusal or error))
                continue
            if producer is None or producers is None:
                checked.append(write)  # Refused before, or not part of a transaction.
                continue
            if not producers.has_open(producer):
                unknown.setdefault(producer, []).append(len(checked))
            checked.append(write._replace(check_transaction=_unless_ended(producers, producer)))
        for producer, indexes in unknown.items():
            partitions = [checked[index].tp for index in indexes]
            errors = await self._ask(transactional_id, producer, partitions, adds_partitions)
            for index, refusal in zip(indexes, errors, strict=True):
                if refusal is not None:
                    checked[index] = checked[index]._replace(refusal=refusal)
        return checked

    def _look(self, write: Write) -> tuple[ProducerIdentity | None, ProducerStates | None]:
        """The producer of a transactional batch, and what its partition remembers."""
        if write.refusal is not None or not write.records or len(write.records) < HEADER_BYTES:
            return None, None
        header: BatchHeader = header_at(write.records)
        if not header.is_transactional:
            return None, None
        if header.size != len(write.records):
            raise InvalidRecord("A transaction writes one batch per partition and request.")
        partition = self._host.find(write.tp)
        partition.check_leader()
        return ProducerIdentity(header.producer_id, header.producer_epoch), partition.log.producers

    async def _ask(
        self, transactional_id: str, producer: ProducerIdentity, partitions: list[TopicPartition], adds: bool
    ) -> Sequence[RequestError | None]:
        try:
            errors = await self._coordinator.partitions_anywhere(
                transactional_id, producer, partitions, adds=adds
            )
        except RequestError as error:
            errors = [error] * len(partitions)
        return [None if error is None else _for_producer(error, adds=adds) for error in errors]


def _unless_ended(producers: ProducerStates, producer: ProducerIdentity) -> Callable[[], None]:
    before = producers.marker_offset(producer.producer_id)

    def check() -> None:
        if producers.marker_offset(producer.producer_id) != before:
            raise NotEnoughReplicas("The transaction ended while the batch was verified; try again.")

    return check


def _for_producer(error: RequestError, *, adds: bool) -> RequestError:
    """The error as producers know it from Produce responses; those with transactions v2 know a few more."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(error.message)
    if isinstance(error, _RETRIABLE) or (isinstance(error, ConcurrentTransactions) and not adds):
        return NotEnoughReplicas(f"The transaction cannot be verified now: {error.message}")
    if isinstance(error, TransactionAbortable) and not adds:
        return InvalidTxnState(error.message)
    return error
