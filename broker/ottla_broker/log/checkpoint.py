"""Kafka's checkpoint files: a version, a count, and one line per entry. [P]

Text on purpose, as in Kafka: a person can read them, and Kafka's tools do. The count and the final newline
make a torn file recognisable; its reader falls back to the log itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ottla_core.ids import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
SCRUB_OFFSETS = "scrub-offset-checkpoint"

_VERSION = "0"

Offsets: TypeAlias = dict[TopicPartition, int]


class BadCheckpoint(ValueError):
    """The file is damaged."""


def encode_lines(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "\n".join([_VERSION, str(len(entries)), *entries, ""]).encode()


def decode_lines(data: bytes) -> list[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadCheckpoint("not text") from error
    version, _, rest = text.partition("\n")
    if version != _VERSION:
        raise BadCheckpoint(f"version {version[:20]!r} instead of {_VERSION}")
    count, _, rest = rest.partition("\n")
    lines = rest.split("\n")
    if not count.isdecimal() or lines.pop() or len(lines) != int(count):
        raise BadCheckpoint(f"it announces {count[:20]!r} entries and does not hold them")
    return lines


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def decode_offsets(data: bytes) -> Offsets:
    found: Offsets = {}
    for line in decode_lines(data):
        try:
            topic, partition, offset = line.split(" ")
            found[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError as error:
            raise BadCheckpoint(f"invalid entry: {line[:200]!r}") from error
    return found


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    return encode_lines(f"{epoch} {start}" for epoch, start in entries)


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for line in decode_lines(data):
        try:
            epoch, start = map(int, line.split(" "))
        except ValueError as error:
            raise BadCheckpoint(f"invalid entry: {line[:200]!r}") from error
        if epoch < 0 or start < 0 or (found and (epoch <= found[-1][0] or start < found[-1][1])):
            raise BadCheckpoint(f"epochs and offsets must rise: {line[:200]!r}")
        found.append((epoch, start))
    return found
