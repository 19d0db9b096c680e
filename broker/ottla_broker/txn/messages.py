"""Requests to a transaction coordinator, their replies, and its effects. [P]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ottla_broker.requests import ProducerIdentity
from ottla_broker.txn.transaction import Transaction
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition


class NeedsProducerId(NamedTuple):
    """The decision needs a new producer id: ask again with `fresh_id` set. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class InitProducer:
    """A producer starts, or recovers from an error: it gets an epoch that fences all earlier ones."""

    writes: ClassVar[bool] = True
    transactional_id: str
    timeout_ms: int
    #: What the producer has had until now (KIP-360); None for one that starts.
    current: ProducerIdentity | None = None
    #: Return the identity of a transaction that is open and prepared, instead of aborting it (KIP-939).
    keep_prepared: bool = False
    fresh_id: int | None = None


class KeptTransaction(NamedTuple):
    """Reply to `InitProducer` with `keep_prepared`: the identity of the prepared transaction."""

    producer: ProducerIdentity


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """The producer is about to write to these partitions; the first one begins the transaction."""

    writes: ClassVar[bool] = True
    transactional_id: str
    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    client_version: int = 0


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """Whether the partitions are part of the producer's transaction (rule 21). Changes nothing."""

    writes: ClassVar[bool] = False
    transactional_id: str
    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


class PartitionsReply(NamedTuple):
    #: In the order of the request.
    errors: tuple[RequestError | None, ...]


@dataclass(frozen=True, slots=True)
class PrepareTransaction:
    """All records of the transaction are written: hold it open until somebody ends it by name."""

    writes: ClassVar[bool] = True
    transactional_id: str
    producer: ProducerIdentity


@dataclass(frozen=True, slots=True)
class EndTransaction:
    writes: ClassVar[bool] = True
    transactional_id: str
    producer: ProducerIdentity
    commits: bool
    client_version: int = 0
    fresh_id: int | None = None


@dataclass(frozen=True, slots=True)
class ForgetTransactionalId:
    """The application retires this id. An unknown id is forgotten already."""

    writes: ClassVar[bool] = True
    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListTransactions:
    writes: ClassVar[bool] = False


class ListedTransaction(NamedTuple):
    transactional_id: str
    value: Transaction


class ListReply(NamedTuple):
    """A snapshot of the table, which may be large: the caller filters and sorts it, in slices."""

    transactions: tuple[tuple[str, Transaction], ...]


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    writes: ClassVar[bool] = False
    transactional_id: str


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Effect: end the transaction in these partitions."""

    transactional_id: str
    producer: ProducerIdentity
    commits: bool
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """Outcome of `WriteMarkers`: markers are written and replicated, except in these partitions."""

    writes: ClassVar[bool] = True
    transactional_id: str
    producer: ProducerIdentity
    missing: frozenset[TopicPartition] = frozenset()
