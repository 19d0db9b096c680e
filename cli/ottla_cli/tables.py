"""Tables as lines of text, for a window of any width. [P]

Names and numbers are never cut or broken. A table that is too wide wraps its sentences first, then puts them below
their row, and at last shows each row as a block of `column  value` lines.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: Minimum width of a column of sentences; narrower ones are hard to read.
_SENTENCE_WIDTH = 30
_GAP = "  "
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    right: bool
    sentences: bool


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    dim: tuple[bool, ...]
    title: str | None = None
    header: bool = True

    def lines(self, width: int, *, colours: bool = False) -> list[str]:
        """The table in at most `width` columns, unless one name or number is longer than that."""
        natural = [
            max(_width(cell) for cell in (column.name, *(row[i] for row in self.rows)))
            for i, column in enumerate(self.columns)
        ]
        made = [_styled(self.title, _BOLD, colours=colours)] if self.title else []
        sentences = [i for i, column in enumerate(self.columns) if column.sentences]
        fixed = [i for i in range(len(self.columns)) if i not in sentences]
        room = width - len(_GAP) * (len(self.columns) - 1) - sum(natural[i] for i in fixed)
        least = [min(natural[i], _SENTENCE_WIDTH) for i in sentences]
        if sum(least) <= room:
            widths = list(natural)
            for i, share in zip(
                sentences, _shares([natural[i] for i in sentences], least, room), strict=True
            ):
                widths[i] = share
            return [*made, *self._grid(range(len(self.columns)), widths, (), width, colours=colours)]
        alone = sum(natural[i] for i in fixed) + len(_GAP) * (len(fixed) - 1)
        if sentences and fixed and alone <= width:
            return [*made, *self._grid(fixed, natural, sentences, width, colours=colours)]
        return [*made, *self._blocks(width, colours=colours)]

    def _grid(
        self, shown: Iterable[int], widths: list[int], below: Sequence[int], width: int, *, colours: bool
    ) -> Iterator[str]:
        columns = list(shown)
        if self.header:
            names = [self.columns[i].name for i in columns]
            yield _styled(self._row(columns, names, widths), _BOLD, colours=colours)
        for row, dim in zip(self.rows, self.dim, strict=True):
            cells = [_wrapped(row[i], widths[i]) if self.columns[i].sentences else [row[i]] for i in columns]
            for n in range(max(map(len, cells), default=0)):
                part = [cell[n] if n < len(cell) else "" for cell in cells]
                yield _styled(self._row(columns, part, widths), _DIM if dim else "", colours=colours)
            for i in below:
                for line in _wrapped(row[i], width - 4):
                    yield _styled(f"    {line}", _DIM if dim else "", colours=colours)

    def _row(self, columns: Sequence[int], cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = []
        for i, cell in zip(columns, cells, strict=True):
            space = " " * (widths[i] - _width(cell))
            padded.append(space + cell if self.columns[i].right else cell + space)
        return _GAP.join(padded).rstrip()

    def _blocks(self, width: int, *, colours: bool) -> Iterator[str]:
        names = max(_width(column.name) for column in self.columns)
        room = max(20, width - names - len(_GAP))
        for number, (row, dim) in enumerate(zip(self.rows, self.dim, strict=True)):
            if number:
                yield ""
            for column, cell in zip(self.columns, row, strict=True):
                for n, part in enumerate(_wrapped(cell, room) or [""]):
                    name = column.name if not n else ""
                    space = " " * (names - _width(name))
                    line = f"{_styled(name, _BOLD, colours=colours)}{space}{_GAP}"
                    yield (line + _styled(part, _DIM if dim else "", colours=colours)).rstrip()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Lets the demo print tables among its panels."""
        from rich.text import Text

        for line in self.lines(options.max_width, colours=console.is_terminal):
            yield Text.from_ansi(line, no_wrap=True, overflow="ignore")


def _shares(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths for columns of sentences: their own if there is room, else the least plus a share of the rest."""
    if sum(natural) <= room:
        return list(natural)
    rest, missing = room - sum(least), sum(natural) - sum(least)
    return [low + rest * (wide - low) // missing for wide, low in zip(natural, least, strict=True)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False)


def _styled(text: str, style: str, *, colours: bool) -> str:
    return f"{style}{text}{_PLAIN}" if colours and style and text else text


def _width(text: str) -> int:
    """Columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
