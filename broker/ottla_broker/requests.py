"""What edges ask of the services and get back. Both edges translate to these and from these, nothing else. [P]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from ottla_core.errors import RequestError
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.ports.disk import Buffer

T = TypeVar("T")

#: Done at once in the common case, awaited otherwise: a task per request would cost more than the request.
Maybe: TypeAlias = T | Awaitable[T]

#: Longest that a client may ask to be kept waiting; theirs are 30 s for a produce, half a second for a fetch.
WAIT_S_MAX = 300.0

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    leader_epoch: int


class Write(NamedTuple):
    """Batches for one partition."""

    tp: TopicPartition
    records: Buffer | None
    #: Why they must not be written, if that is known before.
    refusal: RequestError | None = None
    #: Set if the batch belongs to a transaction that the coordinator has confirmed: raises `RequestError` if that is no
    #: longer certain. Called right before the append.
    check_transaction: Callable[[], None] | None = None


#: What became of a write. Exceptions other than `RequestError` are bugs.
Outcome: TypeAlias = Appended | Exception


class FetchWant(NamedTuple):
    tp: TopicPartition
    offset: int
    max_bytes: int
    #: What the client believes; -1 skips the check.
    leader_epoch: int = -1
    #: Why they must not be read, if that is known before.
    refusal: RequestError | None = None


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    tp: TopicPartition
    error: RequestError | None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    #: Batches as on disk. The first may begin before the asked offset, the last may be cut off.
    records: bytes = b""
    aborted: tuple[Aborted, ...] = ()
    #: The client should read from this follower instead; then there are no records (KIP-392).
    preferred_replica: int = NO_BROKER


class FoundOffset(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    leader_epoch: int
    end_offset: int


class ProducerIdentity(NamedTuple):
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str | None] | None = None
    #: Explicit placement: one tuple of broker ids per partition, in order.
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic; `error` set means that nothing was changed."""

    name: str
    error: RequestError | None = None
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] | None = None


class UserResult(NamedTuple):
    """The outcome of a change of one user's credentials."""

    user: str
    error: RequestError | None = None


class PartitionResult(NamedTuple):
    """The outcome of a change of one partition."""

    topic: str
    partition: int
    error: RequestError | None = None


class ConfigChange(NamedTuple):
    kind: str  # "set", "delete", "append", "subtract"
    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigValue:
    name: str
    value: str | None
    #: The first of these that sets it: "topic", "group", "dynamic-broker" (at run time, for this broker),
    #: "dynamic-default-broker" (at run time, for all), "static-broker" (file, flags) or "default".
    source: str
    type: str  # "boolean", "string", "int", "long", "double", "list"
    documentation: str
    read_only: bool = False
    sensitive: bool = False
    #: (name, value, source) of every level that has a value, the effective one first.
    synonyms: tuple[tuple[str, str | None, str], ...] = ()
