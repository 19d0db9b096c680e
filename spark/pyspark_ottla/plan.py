"""From offsets to tasks: where a micro-batch ends, which data was lost, how ranges are split. [P]

Called by `reader` on the driver. Ranges are half-open, `[start, end)`, and count *offsets*: after compaction or
transactions there may be fewer records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla_core.ids import TopicPartition
from pyspark_ottla.offsets import Position


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The range that one task reads."""

    tp: TopicPartition
    start: int
    end: int
    #: Empty if unknown. A recreated topic has other records at these offsets.
    topic_id: str = ""

    @property
    def size(self) -> int:
        return self.end - self.start


def limited(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int | None
) -> dict[TopicPartition, int]:
    """An end with at most `limit` offsets after `start`, divided in proportion to what each partition has.

    Every partition with records gets at least one offset while the limit lasts, so none starves beside a large one.
    `start` has every partition of `end`: the caller has added the start offsets of new ones.
    """
    waiting = {tp: max(0, end[tp] - start[tp]) for tp in sorted(end)}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(end)
    reached: dict[TopicPartition, int] = {}
    left = limit
    # The smallest first: what they do not use goes to the larger ones.
    for tp in sorted(waiting, key=lambda tp: (waiting[tp], tp)):
        if waiting[tp] == 0:
            reached[tp] = end[tp]  # also one that ends before its start: `ranges_between` reports it
            continue
        share = min(waiting[tp], left, max(1, left * waiting[tp] // total))
        reached[tp] = start[tp] + share
        left -= share
        total -= waiting[tp]
    return reached


def from_beginning(start: Position, end: Position) -> list[TopicPartition]:
    """Partitions of `end` that did not exist at `start`: added since, or of a recreated topic."""
    return [tp for tp in end.offsets if tp not in start.offsets or _recreated(start, end.ids, tp.topic)]


def not_before(end: Position, start: Position) -> Position:
    """`end`, with no partition before its `start`; partitions of a recreated topic stay."""
    fresh = set(from_beginning(start, end))
    offsets = {tp: at if tp in fresh else max(at, start.offsets[tp]) for tp, at in end.offsets.items()}
    return Position(offsets, end.ids)


def waits_for_more(
    start: Position, latest: Position, least: int | None, waited_s: float, delay_s: float
) -> bool:
    """Whether a micro-batch from `start` would be smaller than wanted, and may still wait for more records.

    Changes of the topics do not wait.
    """
    if least is None or waited_s >= delay_s or latest.ids != start.ids:
        return False
    if set(latest.offsets) != set(start.offsets):
        return False
    return sum(at - start.offsets[tp] for tp, at in latest.offsets.items()) < least


def next_end(
    start: Position, latest: Position, earliest: Mapping[TopicPartition, int], limit: int | None
) -> Position:
    """Where the micro-batch from `start` ends; `start` itself if there is nothing to read.

    `earliest` has the earliest offsets of the partitions `from_beginning`.
    """
    first = {tp: earliest[tp] if tp in earliest else start.offsets[tp] for tp in latest.offsets}
    reached = limited(first, latest.offsets, limit)
    if start.initial:
        return Position(reached, latest.ids, started_at=first)
    if reached == start.offsets and latest.ids == start.ids:
        return start  # the same text: that is all Spark compares
    return Position(reached, latest.ids)


def first_of(start: Position, end: Position) -> Position:
    """Where the micro-batch until `end` starts: `start`, unless it was resolved again after `end` was planned."""
    if not start.initial:
        return start
    if end.started_at is not None:
        return Position(end.started_at, end.ids)
    # Logged by a version that did not keep the start: no record before the end has been read, so nothing is lost by
    # reading less of the first micro-batch.
    return Position({tp: min(at, end.offsets.get(tp, at)) for tp, at in start.offsets.items()}, start.ids)


def _recreated(start: Position, ids: Mapping[str, str], topic: str) -> bool:
    before, now = start.ids.get(topic), ids.get(topic)
    return bool(before) and bool(now) and before != now


@dataclass(frozen=True, slots=True)
class Checked:
    """Ranges that can be read, and a message for each loss of data."""

    ranges: list[OffsetRange]
    losses: list[str]


def losses_until(start: Position, end: Position) -> list[str]:
    """Topics and partitions that `start` has and `end` has lost."""
    again = sorted(topic for topic in start.ids if _recreated(start, end.ids, topic))
    losses = [f"Topic {topic!r} was deleted and created again since it was last read." for topic in again]
    losses += [
        f"Partition {tp}, read up to offset {start.offsets[tp]}, no longer exists."
        for tp in sorted(set(start.offsets) - set(end.offsets))
        if tp.topic not in again
    ]
    return losses


def ranges_between(start: Position, end: Position, now: Position) -> Checked:
    """Ranges to read from `start` until `end`. `now` has the earliest offsets of existing partitions and topic ids.

    A partition that is only in `end` was added meanwhile and is read from its beginning.
    """
    ranges: list[OffsetRange] = []
    losses = losses_until(start, end)
    fresh = set(from_beginning(start, end))
    for tp in sorted(end.offsets):
        last = end.offsets[tp]
        if tp not in now.offsets or _recreated(end, now.ids, tp.topic):
            if tp in fresh or start.offsets[tp] < last:
                what = "it was deleted and created again" if tp in now.offsets else "it no longer exists"
                losses.append(f"Partition {tp} cannot be read up to offset {last}: {what}.")
            continue
        oldest = now.offsets[tp]
        if tp in fresh:
            first = oldest
            if oldest > 0 and tp not in start.offsets:
                losses.append(
                    f"Partition {tp} was added, but its first {oldest} offsets have expired already."
                )
        else:
            first = start.offsets[tp]
        if last < first and tp not in fresh:
            cause = "" if start.ids.get(tp.topic) else ", or the topic was deleted and created again"
            losses.append(
                f"Partition {tp} ends at offset {last}, before offset {first} where reading stopped: "
                f"records at its end were lost{cause}."
            )
            continue
        if first < oldest and first < last:
            losses.append(
                f"Offsets {first} to {min(oldest, last) - 1} of {tp} have expired: the earliest offset "
                f"is {oldest}."
            )
            first = oldest
        if first < last:
            ranges.append(OffsetRange(tp, first, last, end.ids.get(tp.topic, "")))
    return Checked(ranges, losses)


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Split large ranges until there are about `min_partitions` of them, and none is longer than `max_records`.

    As in Spark's Kafka connector, splits are in proportion to size, so the number may be slightly off.
    """
    whole = [each for each in ranges if each.size > 0]
    if max_records is not None:
        whole = [part for each in whole for part in _cut(each, -(-each.size // max_records))]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    total = sum(each.size for each in whole)
    parts: list[OffsetRange] = []
    for each in whole:
        parts.extend(_cut(each, max(1, round(each.size * min_partitions / total))))
    return parts


def _cut(whole: OffsetRange, pieces: int) -> Sequence[OffsetRange]:
    pieces = min(pieces, whole.size)
    edges = [whole.start + whole.size * n // pieces for n in range(pieces + 1)]
    return [OffsetRange(whole.tp, edges[n], edges[n + 1], whole.topic_id) for n in range(pieces)]
