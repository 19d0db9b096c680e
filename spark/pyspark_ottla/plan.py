"""From offsets to tasks: how far a micro-batch goes, what was lost meanwhile, how ranges are cut. [P]

Called by `reader` on the driver. Ranges are half-open, `[start, end)`, and hold *offsets*: after compaction or
transactions there may be fewer records than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla_core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What one task reads."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def limited(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int | None
) -> dict[TopicPartition, int]:
    """An end with at most `limit` offsets after `start`, shared out by how much each partition has.

    Every partition that has something gets at least one while the limit lasts, so none starves beside a large one.
    `start` knows every partition of `end`: the caller has put the beginnings of new ones there.
    """
    waiting = {tp: max(0, end[tp] - start[tp]) for tp in sorted(end)}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(end)
    reached: dict[TopicPartition, int] = {}
    left = limit
    # The smallest first: what they cannot use up goes to the larger ones.
    for tp in sorted(waiting, key=lambda tp: (waiting[tp], tp)):
        if waiting[tp] == 0:
            reached[tp] = end[tp]  # also one that ends before its start: `ranges_between` has a word for it
            continue
        share = min(waiting[tp], left, max(1, left * waiting[tp] // total))
        reached[tp] = start[tp] + share
        left -= share
        total -= waiting[tp]
    return reached


@dataclass(frozen=True, slots=True)
class Checked:
    """Ranges that can be read, and a sentence for each loss of data that was met on the way."""

    ranges: list[OffsetRange]
    losses: list[str]


def ranges_between(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> Checked:
    """What to read from `start` until `end`, given the oldest offsets that are still there.

    A partition that is only in `end` was added meanwhile, and is read from its beginning.
    """
    ranges: list[OffsetRange] = []
    losses = [
        f"Partition {tp}, read up to offset {start[tp]}, does not exist any more."
        for tp in sorted(set(start) - set(end))
    ]
    for tp in sorted(end):
        oldest = earliest.get(tp, 0)
        first = start.get(tp)
        if first is None:
            first = oldest
            if oldest > 0:
                losses.append(
                    f"Partition {tp} was added, but its first {oldest} offsets have expired already."
                )
        elif end[tp] < first:
            losses.append(
                f"Partition {tp} ends at offset {end[tp]}, before offset {first} where reading stopped: "
                "the topic was deleted and made anew."
            )
            continue
        elif first < oldest and first < end[tp]:
            losses.append(
                f"Offsets {first} to {min(oldest, end[tp]) - 1} of {tp} have expired: the oldest record left "
                f"is at {oldest}."
            )
            first = oldest
        if first < end[tp]:
            ranges.append(OffsetRange(tp, first, end[tp]))
    return Checked(ranges, losses)


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut large ranges until there are about `min_partitions` of them, and none is longer than `max_records`.

    As in Spark's Kafka connector, cuts are in proportion to size, so the number may be a little off.
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
    return [OffsetRange(whole.tp, edges[n], edges[n + 1]) for n in range(pieces)]
