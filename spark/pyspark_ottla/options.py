"""Parses and checks the user's options (`.option(...)`). [P]

Names and meanings are those of Spark's Kafka connector where it has the option, so that a job migrates by changing
its format. An unknown option is refused, with the nearest known name: an option that silently does nothing is
noticed late.

`source` calls this as early as Spark allows. Every refusal is an `OptionProblem`, one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ottla_client.security import OPTIONS as SECURITY_OPTIONS
from ottla_client.security import PLAINTEXT, Security
from ottla_core.ids import TopicPartition
from pyspark_ottla.given import Given, OptionProblem
from pyspark_ottla.kafka_settings import READ_WITHOUT_EFFECT, WRITE_WITHOUT_EFFECT
from pyspark_ottla.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    OffsetProblem,
    from_json,
    partitions_from_json,
    shortened,
)


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics to read: exactly one of the three is set."""

    named: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    bootstrap: str
    topics: Topics
    start: Bound
    end: Bound
    #: Start at the latest offset where no record is at or after the starting time; if False, that is an error.
    latest_if_too_young: bool
    max_offsets_per_trigger: int | None
    #: A micro-batch waits for so many offsets, but not longer than the delay.
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    #: Leave out partitions, offsets and times that the filters of a batch query exclude.
    push_filters: bool
    read_committed: bool
    fetch_timeout_s: float
    #: How long a broker may take to answer one request.
    request_timeout_ms: int
    #: Maximum bytes of one fetch; a larger batch is fetched alone.
    fetch_bytes: int
    #: Read from in-sync replicas in this rack, where there are some.
    client_rack: str
    #: A stream commits the ends of its micro-batches as offsets of this group.
    group_id: str | None = None
    security: Security = PLAINTEXT


@dataclass(frozen=True, slots=True)
class WriteOptions:
    bootstrap: str
    #: Topic for all rows; None: each row names its topic in a column.
    topic: str | None
    compression: str
    #: Maximum bytes of a request, and so of a record. None: the limits of the topic and the broker.
    max_request_bytes: int | None
    #: Take the records' timestamps from the column `timestamp`, instead of the time of writing.
    write_timestamps: bool
    #: The producer's settings, by Kafka's names.
    batch_bytes: int
    buffer_bytes: int
    #: How long a row may wait for space in the producer's buffer, or for the metadata of its topic.
    max_block_ms: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    #: Unanswered batches of each partition.
    max_in_flight: int
    #: Rows become visible to read_committed readers once, all rows of a batch or none.
    exactly_once: bool
    #: How long a task may write; for exactly-once only.
    transaction_timeout_ms: int
    #: A batch write that may be repeated, such as one in foreachBatch: which sink, and which of its batches.
    place: tuple[str, int] | None = None
    security: Security = PLAINTEXT


BOOTSTRAP = ("bootstrap.servers", "kafka.bootstrap.servers")
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SECURITY = tuple(f"kafka.{name}" for name in SECURITY_OPTIONS)
_READ = (
    *BOOTSTRAP,
    *_SECURITY,
    *_SUBSCRIPTIONS,
    *_STARTS,
    *_ENDS,
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "pushFilters",
    "isolationLevel",
    "kafka.isolation.level",
    "fetchTimeoutMs",
    "client.rack",
    "kafka.client.rack",
    "kafkaConsumer.pollTimeoutMs",
    "kafka.group.id",
    "kafka.request.timeout.ms",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    *sorted(READ_WITHOUT_EFFECT),
)
_WRITE = (
    *BOOTSTRAP,
    *_SECURITY,
    "topic",
    "compression",
    "kafka.compression.type",
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.max.request.size",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.max.block.ms",
    "kafka.request.timeout.ms",
    "kafka.delivery.timeout.ms",
    "kafka.max.in.flight.requests.per.connection",
    "deliveryGuarantee",
    "sinkId",
    "batchId",
    "kafka.transaction.timeout.ms",
    *sorted(WRITE_WITHOUT_EFFECT),
    "includeHeaders",
    "writeTimestamps",
)
_READ_NAMES = frozenset(name.lower() for name in _READ)
_WRITE_NAMES = frozenset(name.lower() for name in _WRITE)
_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_STRATEGIES = ("error", "latest")
_ISOLATION = ("read_uncommitted", "read_committed")
_FETCH_TIMEOUT_MS = 120_000
#: Large enough that the cost per message is negligible, small enough that a task can hold a few of them.
FETCH_BYTES = 4 * 1024 * 1024
#: A task holds the response that it converts, and the next one.
_FETCH_BYTES_MAX = 64 * 1024 * 1024
#: As for any idempotent producer of Kafka.
_IN_FLIGHT_MAX = 5
#: As in Spark's connector.
_MAX_TRIGGER_DELAY = "15m"
#: The producer's defaults for a task: batches as large as the client's own, and room for as many as are in flight.
_BATCH_BYTES = 256 * 1024
_BUFFER_BYTES = 32 * 1024 * 1024
_MAX_BLOCK_MS = 30_000
REQUEST_TIMEOUT_MS = 30_000
_DELIVERY_TIMEOUT_MS = 120_000
#: The brokers' default of transaction.max.timeout.ms: a task may write for so long.
_TRANSACTION_TIMEOUT_MS = 900_000
#: It is part of transactional ids.
_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"


def is_read_option(name: str) -> bool:
    return name.lower() in _READ_NAMES


def is_write_option(name: str) -> bool:
    return name.lower() in _WRITE_NAMES


def is_connection_option(name: str) -> bool:
    """TLS and logins: valid wherever brokers are connected."""
    return name.lower() in _SECURITY


def security_of(options: Mapping[str, str]) -> Security:
    return _security(Given(options))


def check_option(name: str, value: str, *, reads: bool, writes: bool) -> None:
    """Raise OptionProblem unless a program that reads, writes, or both can set this option."""
    known = (*_SECURITY, *(_READ if reads else ()), *(_WRITE if writes else ()))
    purpose = " and ".join(["reading"] * reads + ["writing"] * writes) or "connecting"
    Given({name: value}).check_names(tuple(dict.fromkeys(known)), purpose)


def include_headers(options: Mapping[str, str]) -> bool:
    """The only option that the schema depends on."""
    return Given(options).flag("includeHeaders", False)


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    given = Given(options)
    given.check_names(_READ, "reading")
    _refuse_path(given, 'name topics with .option("subscribe", ...)')
    if streaming:
        for name in _ENDS:
            if given.text(name) is not None:
                raise OptionProblem(f"{name} is for batch reads; a streaming query has no end.")
        if given.text("pushFilters") is not None:
            raise OptionProblem("pushFilters is for batch reads: Spark pushes no filters into streams.")
    else:
        _refuse_in_batch(given)
    start = _bound(given, _STARTS, LATEST if streaming else EARLIEST)
    end = _bound(given, _ENDS, LATEST)
    if not streaming:
        _check_batch_bounds(start, end)
    strategy = given.choice("startingOffsetsByTimestampStrategy", _STRATEGIES, "error")
    isolation = "kafka.isolation.level" if given.text("kafka.isolation.level") else "isolationLevel"
    return ReadOptions(
        bootstrap=_bootstrap(given),
        topics=_topics(given),
        start=start,
        end=end,
        latest_if_too_young=strategy == "latest",
        max_offsets_per_trigger=_max_offsets(given),
        min_offsets_per_trigger=given.number("minOffsetsPerTrigger"),
        max_trigger_delay_s=given.duration_s("maxTriggerDelay", _MAX_TRIGGER_DELAY),
        min_partitions=given.number("minPartitions"),
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        include_headers=given.flag("includeHeaders", False),
        push_filters=given.flag("pushFilters", False),
        read_committed=given.choice(isolation, _ISOLATION, "read_uncommitted") == "read_committed",
        fetch_timeout_s=(
            given.number("fetchTimeoutMs") or given.number("kafkaConsumer.pollTimeoutMs") or _FETCH_TIMEOUT_MS
        )
        / 1000,
        request_timeout_ms=given.number("kafka.request.timeout.ms") or REQUEST_TIMEOUT_MS,
        fetch_bytes=_fetch_bytes(given),
        group_id=given.text("kafka.group.id") if streaming else None,
        client_rack=given.text("client.rack") or given.text("kafka.client.rack") or "",
        security=_security(given),
    )


def write_options(options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    given = Given(options)
    given.check_names(_WRITE, "writing")
    _refuse_path(given, 'name the topic with .option("topic", ...) or a column `topic`')
    if (given.text("kafka.acks") or "all").lower() not in ("all", "-1"):
        raise OptionProblem(
            "kafka.acks takes all: Spark reports a row as written only when all in-sync replicas have it."
        )
    if not given.flag("kafka.enable.idempotence", True):
        raise OptionProblem("kafka.enable.idempotence takes true: retries must not write rows twice.")
    name = "kafka.compression.type" if given.text("kafka.compression.type") else "compression"
    guarantee = given.choice("deliveryGuarantee", (EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE)
    return WriteOptions(
        bootstrap=_bootstrap(given),
        topic=given.text("topic"),
        compression=given.choice(name, _COMPRESSIONS, "none"),
        max_request_bytes=given.number("kafka.max.request.size"),
        write_timestamps=given.flag("writeTimestamps", False),
        batch_bytes=given.number("kafka.batch.size") or _BATCH_BYTES,
        buffer_bytes=given.number("kafka.buffer.memory") or _BUFFER_BYTES,
        max_block_ms=given.number("kafka.max.block.ms") or _MAX_BLOCK_MS,
        request_timeout_ms=given.number("kafka.request.timeout.ms") or REQUEST_TIMEOUT_MS,
        delivery_timeout_ms=given.number("kafka.delivery.timeout.ms") or _DELIVERY_TIMEOUT_MS,
        max_in_flight=_max_in_flight(given),
        exactly_once=guarantee == EXACTLY_ONCE,
        transaction_timeout_ms=given.number("kafka.transaction.timeout.ms") or _TRANSACTION_TIMEOUT_MS,
        place=_place(given, streaming=streaming, exactly_once=guarantee == EXACTLY_ONCE),
        security=_security(given),
    )


def _fetch_bytes(given: Given) -> int:
    """A task reads one partition, so both of Kafka's limits mean the same."""
    names = ("kafka.fetch.max.bytes", "kafka.max.partition.fetch.bytes")
    found = [number for name in names if (number := given.number(name)) is not None]
    return min([*found, _FETCH_BYTES_MAX]) if found else FETCH_BYTES


def _max_in_flight(given: Given) -> int:
    name = "kafka.max.in.flight.requests.per.connection"
    found = given.number(name) or _IN_FLIGHT_MAX
    if found > _IN_FLIGHT_MAX:
        raise OptionProblem(
            f"{name} takes 1 to {_IN_FLIGHT_MAX}: brokers keep so many batches to order retries."
        )
    return found


def _place(given: Given, *, streaming: bool, exactly_once: bool) -> tuple[str, int] | None:
    sink, batch = given.text("sinkId"), given.text("batchId")
    if sink is None and batch is None:
        return None
    if streaming:
        raise OptionProblem(
            "sinkId and batchId are for batch writes; a stream takes them from its checkpoint."
        )
    if sink is None or batch is None:
        raise OptionProblem("sinkId and batchId go together: the sink, and the number of the batch to write.")
    if not exactly_once:
        raise OptionProblem("sinkId and batchId need deliveryGuarantee exactly-once.")
    if _SINK_ID.fullmatch(sink) is None:
        raise OptionProblem(
            f"sinkId takes up to 100 letters, digits, dots, dashes and underscores; got {shortened(sink)}."
        )
    if not (batch.isascii() and batch.isdigit()):
        raise OptionProblem(f"batchId takes a whole number; got {shortened(batch)}.")
    return sink, int(batch)


def _refuse_path(given: Given, instead: str) -> None:
    path = given.text("path")
    if path is not None:
        raise OptionProblem(f"The format ottla takes no path ({shortened(path)}); {instead}.")


def _refuse_in_batch(given: Given) -> None:
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
        if given.text(name) is not None:
            raise OptionProblem(f"{name} is for streaming reads; a batch read takes endingOffsets.")


def _max_offsets(given: Given) -> int | None:
    most, least = given.number("maxOffsetsPerTrigger"), given.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionProblem(f"minOffsetsPerTrigger, {least}, is above maxOffsetsPerTrigger, {most}.")
    return most


def _bootstrap(given: Given) -> str:
    texts = [text for name in BOOTSTRAP if (text := given.text(name)) is not None]
    if not texts:
        raise OptionProblem(
            'Set the brokers\' addresses: .option("bootstrap.servers", "host:9192"), with their gRPC port.'
        )
    if len(set(texts)) > 1:
        raise OptionProblem(
            "bootstrap.servers and kafka.bootstrap.servers name different brokers; set only one."
        )
    return texts[0]


def _security(given: Given) -> Security:
    found = {name: text for name in SECURITY_OPTIONS if (text := given.text(f"kafka.{name}")) is not None}
    try:
        return Security.of(found)
    except ValueError as wrong:
        raise OptionProblem(f"With kafka. before each name: {wrong}") from None


def _topics(given: Given) -> Topics:
    named = [(name, text) for name in _SUBSCRIPTIONS if (text := given.text(name)) is not None]
    if len(named) != 1:
        what = "none was" if not named else f"{' and '.join(name for name, _ in named)} were"
        raise OptionProblem(f"Set exactly one of subscribe, subscribePattern and assign; {what} given.")
    name, text = named[0]
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise OptionProblem(f"subscribe takes comma-separated topic names; got {shortened(text)}.")
        return Topics(named=topics)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionProblem(
                f"subscribePattern {shortened(text)} is not a regular expression: {error}."
            ) from None
        return Topics(pattern=text)
    try:
        return Topics(assigned=tuple(partitions_from_json(text)))
    except OffsetProblem as error:
        raise OptionProblem(str(error)) from None


def _bound(given: Given, names: tuple[str, str, str], default: str) -> Bound:
    """As in Spark's connector, the global timestamp overrides timestamps per partition, and those override offsets."""
    by_offset, by_time, by_times = names
    time_text = given.text(by_time)
    if time_text is not None:
        if not (time_text.isascii() and time_text.isdigit()):
            raise OptionProblem(f"{by_time} takes milliseconds since 1970; got {shortened(time_text)}.")
        return Bound(by_time, timestamp_ms=int(time_text))
    try:
        if (text := given.text(by_times)) is not None:
            return Bound(by_times, timestamps_ms=from_json(text, by_times))
        text = given.text(by_offset) or default
        if text.lower() in (EARLIEST, LATEST):
            return Bound(by_offset, everywhere=text.lower())
        return Bound(by_offset, offsets=from_json(text, by_offset))
    except OffsetProblem as error:
        raise OptionProblem(str(error)) from None


def _check_batch_bounds(start: Bound, end: Bound) -> None:
    if start.everywhere == LATEST or -1 in start.offsets.values():
        raise OptionProblem("startingOffsets of a batch read cannot be latest: nothing would be read.")
    if end.everywhere == EARLIEST or -2 in end.offsets.values():
        raise OptionProblem("endingOffsets of a batch read cannot be earliest: nothing would be read.")
