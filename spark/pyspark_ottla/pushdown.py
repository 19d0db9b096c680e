"""Which ranges a batch read can leave out, by the filters of the query. [A]

Spark passes the filters that are joined by AND, and evaluates all of them again on the rows, so this may leave out less
than it could, and never more. Times in a log have no order: a time bounds the start of a range, and not its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from math import floor
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ottla_core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What rows must have to pass the filters; None where the filters do not say."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    #: Exclusive.
    end_offset: int | None = None
    since_ms: int | None = None

    def wants(self, tp: TopicPartition) -> bool:
        return (self.topics is None or tp.topic in self.topics) and (
            self.partitions is None or tp.partition in self.partitions
        )

    def range(self, start: int, end: int) -> tuple[int, int]:
        """The part of a range that may have rows; empty at its start if there is none."""
        start_ = start if self.first_offset is None else max(start, self.first_offset)
        end_ = end if self.end_offset is None else min(end, self.end_offset)
        return (start_, end_) if start_ < end_ else (start, start)


def narrowing(filters: Iterable[Filter]) -> Narrowing:
    found = Narrowing()
    for each in filters:
        column = getattr(each, "attribute", ())
        if column == ("offset",):
            found = _by_offset(found, each)
        elif column == ("timestamp",):
            found = _by_time(found, each)
        elif column in (("topic",), ("partition",)) and isinstance(each, EqualTo | In):
            values = frozenset(each.value if isinstance(each, In) else [each.value])
            if column == ("topic",):
                found = replace(found, topics=_both(found.topics, values))
            else:
                found = replace(found, partitions=_both(found.partitions, values))
    return found


def _both(before: frozenset[Any] | None, values: frozenset[Any]) -> frozenset[Any]:
    return values if before is None else values & before


def _by_offset(found: Narrowing, each: Filter) -> Narrowing:
    first: int | None = None
    end: int | None = None
    if isinstance(each, EqualTo):
        first, end = each.value, each.value + 1
    elif isinstance(each, In):
        # A null in the list lets no row pass.
        if offsets := [value for value in each.value if value is not None]:
            first, end = min(offsets), max(offsets) + 1
    elif isinstance(each, GreaterThan | GreaterThanOrEqual):
        first = each.value + isinstance(each, GreaterThan)
    elif isinstance(each, LessThan | LessThanOrEqual):
        end = each.value + isinstance(each, LessThanOrEqual)
    if first is not None:
        found = replace(found, first_offset=max(first, found.first_offset or 0))
    if end is not None:
        found = replace(found, end_offset=end if found.end_offset is None else min(end, found.end_offset))
    return found


def _by_time(found: Narrowing, each: Filter) -> Narrowing:
    if not isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
        return found
    time = each.value
    if not isinstance(time, datetime) or time.tzinfo is None or time.timestamp() < 0:
        return found
    return replace(found, since_ms=max(floor(time.timestamp() * 1000), found.since_ms or 0))
