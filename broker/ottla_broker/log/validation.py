"""Validation of clients' batches by the leader, before it assigns offsets. [P]

Clients' batches are checked as Kafka checks them: size, CRC, header, then every record (`records.structure`), so that
whatever is written can be read by everyone. Batches of this broker's coordinators are trusted beyond CRC and count.

Most batches take microseconds and are checked where they are. A batch that needs more than a millisecond or two (many
records, or much to decompress) raises `Unfinished` from `accept`; then `accepting` does the same in steps, with room
for others in between. Refusals are `RequestError`s; nothing has been written when one is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ottla_broker.log.contents import INFLATED_BYTES_MAX, RECORDS_MAX, recompressed, wanted_codec
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.topic_config import LONG_MAX, PRODUCER, TopicConfig
from ottla_core.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    RequestError,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    crc_of,
    header_at,
    reseal,
    whole_batches,
)
from ottla_core.records.codec import RECORD_BYTES_MIN
from ottla_core.records.compression import decompress_framed
from ottla_core.records.structure import Found, check_records

#: Compressed records up to this size are decompressed on the loop if they become no more than the second number:
#: less than a millisecond with any codec.
_PACKED_AT_ONCE_BYTES = 64 << 10
_INFLATED_AT_ONCE_BYTES = 256 << 10

_COMPRESSION_MAX = 4
_DEFINED_FLAGS = 0x7F
#: Attributes that need a closer look; nearly all batches have none of them.
_RARE_FLAGS = ~(COMPRESSION_MASK | LOG_APPEND_TIME_FLAG)
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_SHORT = struct.Struct(">h")
_LONG = struct.Struct(">q")

#: Steps of a validation: None to let others have a turn, or work to be run off the loop, whose result is sent back.
Steps: TypeAlias = Generator[Callable[[], Any] | None, Any, list["Accepted"]]


class Unfinished(Exception):
    """The batches need longer than the event loop can wait: use `accepting`, on a copy that stays."""


class Accepted(NamedTuple):
    """A batch that may be written: its bytes, of which the first 16 will be replaced, and its header."""

    data: memoryview
    header: BatchHeader


class Rules(NamedTuple):
    """What of a topic's configuration every append has to look at, ready to use."""

    config: TopicConfig
    batch_bytes_max: int
    append_bytes_max: int
    #: How far timestamps may be ahead of the broker's clock; ignored with LogAppendTime.
    ahead_ms_max: int
    uses_append_time: bool
    #: How far timestamps may be behind the broker's clock, if not LONG_MAX.
    behind_ms_max: int
    #: Compressed records are checked, too.
    opens_compressed: bool
    #: Batches may have to be changed before they are written.
    rewrites: bool
    needs_keys: bool
    #: Records that are checked in one turn of the event loop; more raise `Unfinished`.
    records_per_turn: int

    @classmethod
    def of(cls, config: TopicConfig, records_per_turn: int) -> Rules:
        return cls(
            config,
            config.max_message_bytes,
            config.segment_bytes,
            LONG_MAX if config.uses_append_time else config.message_timestamp_after_max_ms,
            config.uses_append_time,
            LONG_MAX if config.uses_append_time else config.message_timestamp_before_max_ms,
            config.validate_compressed
            or config.compacts
            or (config.message_timestamp_before_max_ms != LONG_MAX and not config.uses_append_time),
            config.uses_append_time or config.compression_type != PRODUCER,
            config.compacts,
            records_per_turn,
        )


def accept(sent: Buffer, rules: Rules, *, now_ms: int, origin: AppendOrigin) -> list[Accepted]:
    """The batches in `sent`, checked and, if the topic asks for it, rewritten. May raise `Unfinished`."""
    batches = _split(sent, rules, origin)
    if origin is AppendOrigin.COORDINATOR:
        return batches
    records = packed = 0
    for data, header in batches:
        if header.compression == 0:
            records += header.count
        elif rules.opens_compressed or rules.rewrites:
            records += header.count
            packed += len(data)
    if records > rules.records_per_turn or packed > _PACKED_AT_ONCE_BYTES:
        raise Unfinished
    steps = _inspect_all(batches, rules, now_ms)
    try:
        next(steps)
    except StopIteration as done:
        accepted: list[Accepted] = done.value
        return accepted
    raise Unfinished


def accepting(
    sent: Buffer, rules: Rules, *, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
) -> Steps:
    """`accept` for a client's batches in steps that take a millisecond or two each."""
    return (yield from _inspect_all(_split(sent, rules, origin), rules, now_ms))


def _split(sent: Buffer, rules: Rules, origin: AppendOrigin) -> list[Accepted]:
    """The batches in `sent`, their headers and CRCs checked."""
    view = memoryview(sent)
    size = len(view)
    if size < HEADER_BYTES:
        raise CorruptMessage(f"{size} bytes are too few for a record batch.")
    header = header_at(view)
    if header.length + LOG_OVERHEAD == size and header.magic == MAGIC:
        batches = [Accepted(view, header)]  # By far the most common: one batch, nothing to split.
    else:
        batches = [Accepted(view[at : at + h.size], h) for at, h in whole_batches(view)]
    if size > rules.append_bytes_max:
        raise RecordListTooLarge(f"{size} bytes in one append, segment.bytes is {rules.append_bytes_max}.")
    if len(batches) > 1 and any(header.has_producer for _, header in batches):
        # Kafka refuses several batches whoever wrote them. Here only sequences need it: an answer has one base offset,
        # and of two batches one might be a duplicate and the other not.
        raise InvalidRecord("An idempotent producer writes one batch per partition and request.")
    for data, header in batches:
        _check(data, header, rules, origin)
    return batches


def _check(data: memoryview, header: BatchHeader, rules: Rules, origin: AppendOrigin) -> None:
    size = len(data)
    is_client = origin is not AppendOrigin.COORDINATOR
    if size > rules.batch_bytes_max and is_client:
        raise MessageTooLarge(f"The batch has {size} bytes, max.message.bytes is {rules.batch_bytes_max}.")
    if crc_of(data, 0, size) != header.crc:
        raise CorruptMessage("The CRC of the batch is wrong.")
    attributes, count = header.attributes, header.count
    if attributes & COMPRESSION_MASK > _COMPRESSION_MAX:
        raise UnsupportedCompressionType(f"Unknown compression codec {attributes & COMPRESSION_MASK}.")
    if count < 1 or count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{count} records do not fit a last offset delta of {header.last_offset_delta}.")
    if not is_client:
        return
    if attributes & _RARE_FLAGS:
        _check_flags(attributes, origin)
    if header.producer_id < NO_PRODUCER_ID:
        raise InvalidRecord(f"There is no producer id {header.producer_id}.")
    if header.max_timestamp < NO_TIMESTAMP or header.base_timestamp < NO_TIMESTAMP:
        raise InvalidTimestamp(
            f"Timestamps {header.base_timestamp} to {header.max_timestamp} of the batch are negative."
        )


def _check_flags(attributes: int, origin: AppendOrigin) -> None:
    if attributes & CONTROL_FLAG:
        raise InvalidRecord("Clients must not write control batches.")
    if attributes & TRANSACTIONAL_FLAG and origin is AppendOrigin.CLIENT:
        # As in Kafka, where a transaction begins with its coordinator, which the transactional id leads to.
        raise TransactionalIdAuthorizationFailed(
            "The batch is transactional, and its request names no transactional id of an open transaction."
        )
    if attributes & DELETE_HORIZON_FLAG:
        raise InvalidRecord("Only compaction may set a delete horizon.")
    if attributes & ~_DEFINED_FLAGS:
        raise InvalidRecord(
            f"Attributes {attributes & 0xFFFF:#06x} of the batch have bits that are not defined."
        )


def _inspect_all(batches: list[Accepted], rules: Rules, now_ms: int) -> Steps:
    accepted: list[Accepted] = []
    for batch in batches:
        if batch.header.compression == 0 or rules.opens_compressed:
            found = yield from _inspect(batch, rules, now_ms)
            batch = _with_newest(batch, found)
        elif batch.header.max_timestamp - now_ms > rules.ahead_ms_max:
            raise InvalidTimestamp(_untimely(batch.header.max_timestamp, rules, now_ms))
        if rules.rewrites:
            batch = yield from _rewrite(batch, rules.config, now_ms)
        accepted.append(batch)
    return accepted


def _inspect(batch: Accepted, rules: Rules, now_ms: int) -> Generator[Callable[[], Any] | None, Any, Found]:
    data, header = batch
    records = data[HEADER_BYTES:]
    if header.compression:
        records = yield from _inflated(records, header.compression)
    if RECORDS_MAX < header.count <= len(records) // RECORD_BYTES_MIN:
        raise MessageTooLarge(f"A batch of {header.count} records is too large; the limit is {RECORDS_MAX}.")
    base = header.base_timestamp
    least, most = NO_TIMESTAMP - base, LONG_MAX - base
    if not header.is_log_append_time:
        if rules.ahead_ms_max != LONG_MAX:
            most = min(most, now_ms + rules.ahead_ms_max - base)
        if rules.behind_ms_max != LONG_MAX:
            least = max(least, now_ms - rules.behind_ms_max - base)
    elif header.max_timestamp - now_ms > rules.ahead_ms_max:
        raise InvalidTimestamp(_untimely(header.max_timestamp, rules, now_ms))
    found = yield from check_records(
        records,
        header.count,
        needs_keys=rules.needs_keys,
        least_delta=least,
        most_delta=most,
        per_turn=rules.records_per_turn,
    )
    if found.keyless:
        why = "A compacted topic takes no records without a key."
        raise _naming(InvalidRecord, why, [(index, why) for index in found.keyless])
    # As in Kafka, a record without a time is not measured against the clock.
    late = [(index, base + delta) for index, delta in found.untimely if base + delta != NO_TIMESTAMP]
    if late:
        raise _naming(
            InvalidTimestamp,
            _untimely(late[0][1], rules, now_ms),
            [(index, _untimely(timestamp, rules, now_ms)) for index, timestamp in late],
        )
    return found


def _inflated(packed: memoryview, codec: int) -> Generator[Callable[[], Any] | None, Any, memoryview]:
    """The records, decompressed: small ones on the loop, others on a thread."""
    try:
        if len(packed) <= _PACKED_AT_ONCE_BYTES:
            try:
                buffer, size = decompress_framed(codec, packed, _INFLATED_AT_ONCE_BYTES)
                return memoryview(buffer)[:size]
            except MessageTooLarge:
                pass
        buffer, size = yield partial(decompress_framed, codec, packed, INFLATED_BYTES_MAX)
    except CorruptMessage as error:
        # Not a matter of the wire, as the CRC is right: sent again it would be the same.
        raise InvalidRecord(error.message) from None
    return memoryview(buffer)[:size]


def _naming(kind: type[RequestError], message: str, named: list[tuple[int, str]]) -> RequestError:
    error = kind(f"{message} {len(named)} or more such records." if len(named) > 1 else message)
    error.record_errors = tuple(named)
    return error


def _untimely(timestamp: int, rules: Rules, now_ms: int) -> str:
    if timestamp < NO_TIMESTAMP:
        return f"Timestamp {timestamp} is negative."
    if timestamp > now_ms:
        return (
            f"Timestamp {timestamp} is more than message.timestamp.after.max.ms = {rules.ahead_ms_max} ahead of "
            f"the broker's {now_ms}."
        )
    return (
        f"Timestamp {timestamp} is more than message.timestamp.before.max.ms = {rules.behind_ms_max} behind the "
        f"broker's {now_ms}."
    )


def _with_newest(batch: Accepted, found: Found) -> Accepted:
    """The header's greatest timestamp, made true as Kafka does: retention and searches by time believe it."""
    header = batch.header
    newest = header.base_timestamp + found.newest_delta
    if newest == header.max_timestamp or header.is_log_append_time:
        return batch
    made = bytearray(batch.data)
    _LONG.pack_into(made, _MAX_TIMESTAMP_AT, newest)
    reseal(made, 0, len(made))
    return Accepted(memoryview(made), header_at(made))


def _rewrite(
    batch: Accepted, config: TopicConfig, now_ms: int
) -> Generator[Callable[[], Any] | None, Any, Accepted]:
    if config.compression_type != PRODUCER and batch.header.compression != wanted_codec(config):
        repack = partial(recompressed, batch.data, batch.header, config)
        made = repack() if len(batch.data) <= _PACKED_AT_ONCE_BYTES else (yield repack)
        if len(made) > config.max_message_bytes:
            raise MessageTooLarge(
                f"Stored as {config.compression_type} the batch has {len(made)} bytes, max.message.bytes is "
                f"{config.max_message_bytes}."
            )
        batch = Accepted(memoryview(made), header_at(made))
    if config.uses_append_time:
        batch = _with_append_time(batch, now_ms)
    return batch


def _with_append_time(batch: Accepted, now_ms: int) -> Accepted:
    """The broker's time for all records: said once, in the header."""
    made = bytearray(batch.data)
    _SHORT.pack_into(made, _ATTRIBUTES_AT, batch.header.attributes | LOG_APPEND_TIME_FLAG)
    _LONG.pack_into(made, _MAX_TIMESTAMP_AT, now_ms)
    reseal(made, 0, len(made))
    return Accepted(memoryview(made), header_at(made))


def follow(sent: Buffer) -> list[Accepted]:
    """The batches in what a leader sent: whole, with right CRCs. Their offsets are the leader's."""
    view = memoryview(sent)
    accepted = [Accepted(view[at : at + header.size], header) for at, header in whole_batches(view)]
    for data, header in accepted:
        if crc_of(data, 0, len(data)) != header.crc:
            raise CorruptMessage(f"The CRC of the replicated batch at offset {header.base_offset} is wrong.")
        if header.base_offset < 0 or header.last_offset_delta < 0 or header.leader_epoch < 0:
            raise CorruptMessage(f"A replicated batch cannot have offset {header.base_offset}.")
    return accepted
