"""What a client may write: the checks a leader makes before it gives batches their offsets. [P]

Looks at headers and CRCs only, unless the topic asks for more: other timestamps, another compression, or
keys. So a plain append costs one header and one CRC per batch, whatever the batch holds.

Refusals are `RequestError`s; nothing has been written when one is raised.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla_broker.log.contents import recompressed, records, wanted_codec
from ottla_broker.topic_config import LONG_MAX, PRODUCER, TopicConfig
from ottla_core.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    UnsupportedCompressionType,
)
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    crc_of,
    header_at,
    reseal,
    whole_batches,
)

_COMPRESSION_MAX = 4
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_SHORT = struct.Struct(">h")
_LONG = struct.Struct(">q")


class Accepted(NamedTuple):
    """A batch that may be written: its bytes, of which the first 16 will be replaced, and its header."""

    data: memoryview
    header: BatchHeader


class Rules(NamedTuple):
    """What of a topic's configuration every append has to look at, ready to use."""

    config: TopicConfig
    batch_bytes_max: int
    append_bytes_max: int
    #: Timestamps may be so far ahead of our clock; no matter where the topic uses our own.
    ahead_ms_max: int
    uses_append_time: bool
    #: Records themselves matter, or are rewritten.
    looks_inside: bool

    @classmethod
    def of(cls, config: TopicConfig) -> Rules:
        return cls(
            config,
            config.max_message_bytes,
            config.segment_bytes,
            LONG_MAX if config.uses_append_time else config.message_timestamp_after_max_ms,
            config.uses_append_time,
            config.uses_append_time
            or config.compression_type != PRODUCER
            or config.compacts
            or config.message_timestamp_before_max_ms != LONG_MAX,
        )


def accept(sent: Buffer, rules: Rules, *, now_ms: int, internal: bool) -> list[Accepted]:
    """The batches in `sent`, checked and, if the topic asks for it, rewritten."""
    view = memoryview(sent)
    size = len(view)
    if size < HEADER_BYTES:
        raise CorruptMessage(f"{size} bytes are too few for a record batch.")
    header = header_at(view)
    if header.length + LOG_OVERHEAD == size and header.magic == MAGIC:
        accepted = [Accepted(view, header)]  # By far the most common: one batch, nothing to cut.
    else:
        accepted = [Accepted(view[at : at + h.size], h) for at, h in whole_batches(view)]
    if size > rules.append_bytes_max:
        raise RecordListTooLarge(f"{size} bytes in one append, segment.bytes is {rules.append_bytes_max}.")
    for data, header in accepted:
        _check(data, header, rules, now_ms, internal)
    if rules.looks_inside and not internal:
        return [_rewrite(batch, rules.config, now_ms) for batch in accepted]
    return accepted


def _check(data: memoryview, header: BatchHeader, rules: Rules, now_ms: int, internal: bool) -> None:
    size = len(data)
    if size > rules.batch_bytes_max and not internal:
        raise MessageTooLarge(f"The batch has {size} bytes, max.message.bytes is {rules.batch_bytes_max}.")
    if crc_of(data, 0, size) != header.crc:
        raise CorruptMessage("The CRC of the batch is wrong.")
    attributes, count, newest = header.attributes, header.count, header.max_timestamp
    if attributes & COMPRESSION_MASK > _COMPRESSION_MAX:
        raise UnsupportedCompressionType(f"There is no compression number {attributes & COMPRESSION_MASK}.")
    if count < 1 or count != header.last_offset_delta + 1:
        raise InvalidRecord(f"{count} records do not fit a last offset delta of {header.last_offset_delta}.")
    if internal:
        return
    if attributes & CONTROL_FLAG:
        raise InvalidRecord("Clients must not write control batches.")
    if newest < NO_TIMESTAMP or header.base_timestamp < NO_TIMESTAMP:
        raise InvalidTimestamp(f"Timestamps {header.base_timestamp} to {newest} are negative.")
    if newest - now_ms > rules.ahead_ms_max:
        raise InvalidTimestamp(
            f"Timestamp {newest} is more than message.timestamp.after.max.ms = {rules.ahead_ms_max} ahead of "
            f"the broker's {now_ms}."
        )


def _rewrite(batch: Accepted, config: TopicConfig, now_ms: int) -> Accepted:
    bounds_age = config.message_timestamp_before_max_ms != LONG_MAX and not config.uses_append_time
    if config.compacts or bounds_age:
        _inspect(batch, config, now_ms if bounds_age else None)
    if config.compression_type != PRODUCER and batch.header.compression != wanted_codec(config):
        made = recompressed(batch.data, batch.header, config)
        if len(made) > config.max_message_bytes:
            raise MessageTooLarge(
                f"Stored as {config.compression_type} the batch has {len(made)} bytes, max.message.bytes is "
                f"{config.max_message_bytes}."
            )
        batch = Accepted(memoryview(made), header_at(made))
    if config.uses_append_time:
        batch = _with_append_time(batch, now_ms)
    return batch


def _inspect(batch: Accepted, config: TopicConfig, now_ms: int | None) -> None:
    """Record by record, for topics that have rules about single records."""
    for record in records(batch.data, batch.header):
        if config.compacts and record.key is None:
            raise InvalidRecord("A compacted topic takes no records without a key.")
        if now_ms is None or record.timestamp_ms == NO_TIMESTAMP:
            continue
        if now_ms - record.timestamp_ms > config.message_timestamp_before_max_ms:
            raise InvalidTimestamp(
                f"Timestamp {record.timestamp_ms} is more than message.timestamp.before.max.ms = "
                f"{config.message_timestamp_before_max_ms} behind the broker's {now_ms}."
            )


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
            raise CorruptMessage(f"The CRC of the followed batch at offset {header.base_offset} is wrong.")
        if header.base_offset < 0 or header.last_offset_delta < 0 or header.leader_epoch < 0:
            raise CorruptMessage(f"A followed batch cannot have offset {header.base_offset}.")
    return accepted
