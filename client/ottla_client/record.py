"""Record types of the public API: records to send, records read, and their metadata. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias

from ottla_core.ids import TopicPartition

if TYPE_CHECKING:
    # Only type checkers need defaults; Python has them from 3.13 on.
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

__all__ = [
    "ActiveProducer",
    "CommittedOffset",
    "ConsumerRecord",
    "GroupMetadata",
    "Headers",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "ProducerRecord",
    "RecordMetadata",
    "TopicPartition",
]

#: Name and value; Kafka allows a value of None.
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


class RecordMetadata(NamedTuple):
    """Partition and offset of an acknowledged record. The offset is -1 with `acks=0`: it is unknown."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """One record as read from a partition, with key and value deserialized.

    Key and value may be None, also with a deserializer; `ConsumerRecord[str | None, Order | None]` says so.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: K
    value: V
    headers: Headers
    #: 0: the producer set the time; 1: the broker did, when it appended.
    timestamp_type: int = 0


class OffsetAndMetadata(NamedTuple):
    """An offset to commit, or committed: the next record to read, with user metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class CommittedOffset(NamedTuple):
    """An offset as the coordinator keeps it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    #: When it was committed, by the coordinator's clock; -1 if unknown.
    commit_timestamp_ms: int = -1


class GroupMetadata(NamedTuple):
    """A member of a group, for offsets that a transaction commits; without a member id, no member is checked."""

    group_id: str
    member_id: str = ""
    generation: int = -1
    group_instance_id: str = ""


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    #: Of its last transaction marker; -1 without one.
    coordinator_epoch: int
    #: First offset of its open transaction; None without one.
    transaction_first_offset: int | None


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ProducerRecord(Generic[K, V]):
    """A record before serialization, as producer interceptors see it; they may replace it."""

    topic: str
    value: V | None = None
    key: K | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class PreparedTransaction(NamedTuple):
    """The name by which any process can commit or abort it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
