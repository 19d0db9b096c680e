"""Values of metrics as a scrape shows them, and histograms. [P]"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

#: From 0.1 ms, where a produce request lives, to 10 s, beyond which every client has given up.
SECONDS_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

#: Label value under which everything beyond a limit is counted. No topic can have this name.
OTHER = "(other)"


class Sample(NamedTuple):
    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Family(NamedTuple):
    """One metric with all its samples, as a scrape shows it."""

    name: str
    type: str  # "counter", "gauge" or "histogram"
    doc: str
    #: A generator, if there may be many: samples are made while they are written, over several turns of the event
    #: loop. So it must not walk a container that changes.
    samples: Iterable[Sample]


class Histogram:
    """Counts per bucket; about 0.2 µs per observation."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS_BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self.total += seconds

    def samples(self, labels: tuple[tuple[str, str], ...] = ()) -> list[Sample]:
        made = []
        running = 0
        for bound, count in zip(SECONDS_BOUNDS, self.counts, strict=False):
            running += count
            made.append(Sample("_bucket", (*labels, ("le", repr(bound))), running))
        running += self.counts[-1]
        made.append(Sample("_bucket", (*labels, ("le", "+Inf")), running))
        made.append(Sample("_sum", labels, self.total))
        made.append(Sample("_count", labels, running))
        return made


class Histograms:
    """Histograms by one label from a closed set."""

    __slots__ = ("_by_value", "label")

    def __init__(self, label: str) -> None:
        self.label = label
        self._by_value: dict[str, Histogram] = {}

    def of(self, value: str) -> Histogram:
        found = self._by_value.get(value)
        if found is None:
            found = self._by_value[value] = Histogram()
        return found

    def samples(self) -> list[Sample]:
        return [each for value, one in self._by_value.items() for each in one.samples(((self.label, value),))]
