"""Offsets in Spark's checkpoint format, and where a read starts and ends. [P]

In a checkpoint offsets are `{"topic": {"0": 12, "1": 7}}`, as in Spark's Kafka connector: the offset
of the next record to read per partition. `startingOffsets` and `endingOffsets` accept the same text, where -1
stands for the latest and -2 for the earliest offset.

A checkpoint has two more entries, under names that no topic can have. `#topicIds` distinguishes a topic from a new one
with the same name. `#startedAt` is in the end of the first micro-batch only and says where that batch starts.
Spark logs the end of a batch and calls `initialOffset` again whenever it needs the start of the first one, also after a
restart; without the entry, `latest` would be a later offset each time. Checkpoints without these entries are accepted.

`options` uses this module to parse such texts, `reader` to turn a bound into offsets. The caller looks offsets up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla_core.ids import TopicPartition

EARLIEST = "earliest"
LATEST = "latest"
#: Their numbers in JSON offsets.
_SPECIAL = {-1: LATEST, -2: EARLIEST}

#: A ListOffsets query: "earliest", "latest", or a time in ms.
Question = str | int


class OffsetProblem(ValueError):
    """Offsets that cannot be used, in one sentence."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends: the same for all partitions, or per partition.

    Exactly one of the fields is set. `option` is the name of the user's option, for error messages.
    """

    option: str
    everywhere: str | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)

    def is_by_time(self) -> bool:
        return self.timestamp_ms is not None or bool(self.timestamps_ms)


def from_json(text: str, option: str) -> dict[TopicPartition, int]:
    """`{"topic": {"0": 12}}` as a mapping; raises OffsetProblem with the option's name for anything else."""
    try:
        found = from_nested(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise OffsetProblem(
            f"{option} takes earliest, latest, or JSON such as {_EXAMPLE}; got {shortened(text)}."
        ) from None
    by_time = option.endswith("Timestamp")
    allowed = "milliseconds since 1970" if by_time else "offsets from 0 on, -1 for latest, -2 for earliest"
    for tp, number in found.items():
        if number < (0 if by_time else min(_SPECIAL)):
            raise OffsetProblem(f"{option} takes {allowed}; {tp} has {number}.")
    return found


_EXAMPLE = '{"events": {"0": 23, "1": -2}}'


def from_nested(nested: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Offsets only: ignores other entries of a checkpoint, so its text is a valid `startingOffsets` too."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in nested.items():
        if topic in _ENTRIES:
            continue
        for partition, offset in partitions.items():
            if type(offset) is not int:
                raise TypeError(f"{offset!r} is not an offset")
            found[TopicPartition(topic, int(partition))] = offset
    return found


def to_nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """For Spark's checkpoint: sorted, so that equal offsets give equal texts."""
    nested: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return nested


@dataclass(frozen=True, slots=True)
class Position:
    """The state of a stream in Spark's checkpoint: offsets, and the ids of their topics."""

    offsets: Mapping[TopicPartition, int]
    #: Topic id by name. Checkpoints of earlier versions have none.
    ids: Mapping[str, str] = field(default_factory=dict)
    #: Result of `initialOffset`: the next result may differ.
    initial: bool = False
    #: In the end of the first micro-batch: where it starts.
    started_at: Mapping[TopicPartition, int] | None = None

    @classmethod
    def from_nested(cls, nested: Mapping[str, Any]) -> Position:
        started_at = nested.get(_STARTED_AT)
        return cls(
            from_nested(nested),
            dict(nested.get(_TOPIC_IDS, {})),
            bool(nested.get(_INITIAL, False)),
            None if started_at is None else from_nested(started_at),
        )

    def to_nested(self) -> dict[str, Any]:
        nested: dict[str, Any] = {**to_nested(self.offsets)}
        if self.ids:
            nested[_TOPIC_IDS] = {topic: self.ids[topic] for topic in sorted(self.ids)}
        if self.initial:
            nested[_INITIAL] = True
        if self.started_at is not None:
            nested[_STARTED_AT] = to_nested(self.started_at)
        return nested

    def id_of(self, tp: TopicPartition) -> str | None:
        return self.ids.get(tp.topic)


# Topic names have letters, digits, dots, dashes and underscores only.
_TOPIC_IDS = "#topicIds"
_INITIAL = "#initial"
_STARTED_AT = "#startedAt"
_ENTRIES = frozenset([_TOPIC_IDS, _INITIAL, _STARTED_AT])


def partitions_from_json(text: str) -> list[TopicPartition]:
    """`{"topic": [0, 1]}`, the format of `assign`."""
    try:
        named = [
            TopicPartition(topic, int(n)) for topic, numbers in json.loads(text).items() for n in numbers
        ]
    except (ValueError, TypeError, AttributeError):
        raise OffsetProblem(
            f'assign takes JSON such as {{"events": [0, 1]}}; got {shortened(text)}.'
        ) from None
    if not named:
        raise OffsetProblem("assign names no partition.")
    return sorted(set(named))


# --- from a bound to offsets ---


def questions(bound: Bound, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Question]:
    """Lookups that these partitions need; partitions with an offset in the bound need none."""
    asked: dict[TopicPartition, Question] = {}
    for tp in partitions:
        if bound.everywhere is not None:
            asked[tp] = bound.everywhere
        elif bound.timestamp_ms is not None:
            asked[tp] = bound.timestamp_ms
        elif tp in bound.timestamps_ms:
            asked[tp] = bound.timestamps_ms[tp]
        elif bound.offsets.get(tp) in _SPECIAL:
            asked[tp] = _SPECIAL[bound.offsets[tp]]
    return asked


def resolved(
    bound: Bound,
    partitions: Iterable[TopicPartition],
    found: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The offset of each partition. `found` has the results of `questions`; -1 there means that no record has reached
    the time yet, and becomes the offset in `latest`.
    """
    partitions = list(partitions)
    if bound.offsets or bound.timestamps_ms:
        _check_named(bound, partitions)
    offsets: dict[TopicPartition, int] = {}
    for tp in partitions:
        offset = found[tp] if tp in found else bound.offsets[tp]
        offsets[tp] = latest[tp] if offset < 0 else offset
    return offsets


def too_young(bound: Bound, found: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Partitions that have no record at or after the bound's time."""
    return [tp for tp, offset in found.items() if offset < 0] if bound.is_by_time() else []


def _check_named(bound: Bound, partitions: list[TopicPartition]) -> None:
    named = set(bound.offsets) | set(bound.timestamps_ms)
    missing = sorted(set(partitions) - named)
    if missing:
        raise OffsetProblem(
            f"{bound.option} must name every partition that is read; {listed(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing (-2 means earliest, -1 latest)."
        )
    unknown = sorted(named - set(partitions))
    if unknown:
        raise OffsetProblem(f"{bound.option} names {listed(unknown)}, which the query does not read.")


def listed(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    names = [f"{tp.topic}-{tp.partition}" for tp in partitions]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shortened(text: str, most: int = 80) -> str:
    return repr(text if len(text) <= most else text[: most - 3] + "...")
