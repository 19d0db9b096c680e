"""Tables as lines of text, for a window of any width. [P]

Names and numbers are never cut or broken. A table that is too wide wraps its sentences first, then puts them below
their row, then gives names of the first column that are too long a line of their own, as `df` does. At last it shows
each row as a block of `column  value` lines; a value that is too long stands below its column.
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
        least = [min(natural[i], max(_SENTENCE_WIDTH, self._longest_word(i))) for i in sentences]
        if sum(least) <= room:
            widths = list(natural)
            for i, share in zip(
                sentences, _shares([natural[i] for i in sentences], least, room), strict=True
            ):
                widths[i] = share
            return [*made, *self._grid(range(len(self.columns)), widths, (), width, colours=colours)]
        if not self.header and len(self.columns) == 2:
            return [*made, *self._facts(natural[0], width)]
        alone = sum(natural[i] for i in fixed) + len(_GAP) * (len(fixed) - 1)
        if sentences and fixed and alone <= width:
            return [*made, *self._grid(fixed, natural, sentences, width, colours=colours)]
        room = width - alone + natural[fixed[0]] if fixed else 0
        if not self.columns[0].right and fixed[:1] == [0] and room >= _width(self.columns[0].name):
            natural[0] = max(each for row in self._firsts() if (each := _width(row)) <= room)
            return [*made, *self._grid(fixed, natural, sentences, width, colours=colours)]
        return [*made, *self._blocks(width, colours=colours)]

    def _firsts(self) -> list[str]:
        """The first column: its name, then its cells."""
        return [self.columns[0].name, *(row[0] for row in self.rows)]

    def _longest_word(self, column: int) -> int:
        return max((_width(word) for row in self.rows for word in row[column].split()), default=0)

    def _grid(
        self, shown: Iterable[int], widths: list[int], below: Sequence[int], width: int, *, colours: bool
    ) -> Iterator[str]:
        columns = list(shown)
        if self.header:
            names = [self.columns[i].name for i in columns]
            yield _styled(self._row(columns, names, widths), _BOLD, colours=colours)
        for row, dim in zip(self.rows, self.dim, strict=True):
            cells = [_wrapped(row[i], widths[i]) if self.columns[i].sentences else [row[i]] for i in columns]
            if 0 in columns and _width(row[0]) > widths[0] and not self.columns[0].sentences:
                yield _styled(row[0], _DIM if dim else "", colours=colours)
                cells[0] = [""]
            for n in range(max(map(len, cells), default=0)):
                part = [cell[n] if n < len(cell) else "" for cell in cells]
                yield _styled(self._row(columns, part, widths), _DIM if dim else "", colours=colours)
            for i in below:
                if len(below) > 1 and row[i] in ("", "-"):
                    continue
                text = f"{self.columns[i].name}: {row[i]}" if len(below) > 1 else row[i]
                for line in _own_lines(text, width, indent=4):
                    yield _styled(line, _DIM if dim else "", colours=colours)

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
                parts, style = _wrapped(cell, room) or [""], _DIM if dim else ""
                if max(map(_width, parts)) > room:
                    # A name that is too long for the space beside its column's name has a line of its own.
                    yield _styled(column.name, _BOLD, colours=colours)
                    yield from (_styled(line, style, colours=colours) for line in _own_lines(cell, width))
                    continue
                for n, part in enumerate(parts):
                    name = column.name if not n else ""
                    space = " " * (names - _width(name))
                    line = f"{_styled(name, _BOLD, colours=colours)}{space}{_GAP}"
                    yield (line + _styled(part, style, colours=colours)).rstrip()

    def _facts(self, names: int, width: int) -> Iterator[str]:
        """A list of facts in which one is too long to stand beside its name."""
        for name, fact in self.rows:
            if names + len(_GAP) + _width(fact) <= width:
                yield f"{name}{' ' * (names - _width(name))}{_GAP}{fact}".rstrip()
            else:
                yield name
                yield from _own_lines(fact, width)

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


def _own_lines(text: str, width: int, indent: int = 2) -> list[str]:
    """Indented, but less if a word would not fit then."""
    parts = _wrapped(text, width - indent)
    space = " " * max(0, min(indent, width - max(map(_width, parts), default=0)))
    return [f"{space}{part}" for part in parts]


def _styled(text: str, style: str, *, colours: bool) -> str:
    return f"{style}{text}{_PLAIN}" if colours and style and text else text


def _width(text: str) -> int:
    """Columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
