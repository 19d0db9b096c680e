"""Reads Prometheus text as far as `ottla top` needs it. [P]"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Page:
    """Samples of one scrape: labels and value by name."""

    series: Mapping[str, list[tuple[dict[str, str], float]]]

    def rows(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        yield from self.series.get(name, ())

    def total(self, name: str) -> float:
        return sum(value for _, value in self.rows(name))

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Sums by the values of labels."""
        sums: dict[tuple[str, ...], float] = {}
        for found, value in self.rows(name):
            key = tuple(found.get(label, "") for label in labels)
            sums[key] = sums.get(key, 0.0) + value
        return sums


def read_page(text: str, wanted: Collection[str]) -> Page:
    """Only the wanted metrics; lines that are not valid are skipped."""
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        if line.startswith("#") or line.partition("{")[0].partition(" ")[0] not in wanted:
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = {name: _unescaped(text) for name, text in _LABEL.findall(found[2] or "")}
        series.setdefault(found[1], []).append((labels, value))
    return Page(series)


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), text) if "\\" in text else text
