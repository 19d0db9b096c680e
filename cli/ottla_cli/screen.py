"""Output for people: tables on standard output, notes on standard error; `bars` has the progress bars. [A]

Colours and bars appear only on a terminal. Control characters in names from outside are shown as escapes. Piped
tables are not cut off: a script that greps them sees whole words.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import typer

from ottla_cli.failure import Failure
from ottla_cli.tables import Column, Table

if TYPE_CHECKING:
    from rich.console import Console

#: Table width without a terminal: wide enough for any row.
_PIPED_WIDTH = 10_000
_STYLES = {"": "", "dim": "\x1b[2m", "yellow": "\x1b[33m", "red": "\x1b[31m"}


def console(*, stderr: bool = False) -> Console:
    """For progress bars and panels. rich takes 60 ms to load, so tables and notes do without it."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream, highlight=False, markup=False, width=None if stream.isatty() else _PIPED_WIDTH
    )


def has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    return shutil.get_terminal_size().columns if stream.isatty() else _PIPED_WIDTH


def say(sentence: str) -> None:
    """Print the result of a command that changes something."""
    typer.echo(fitted(sentence, sys.stdout))


def note(sentence: str, *, style: str = "") -> None:
    """Print a note on standard error, beside the result."""
    code, sentence = _STYLES[style], fitted(sentence, sys.stderr)
    typer.echo(f"{code}{sentence}\x1b[0m" if code and has_colours(sys.stderr) else sentence, err=True)


def fitted(text: str, stream: TextIO) -> str:
    """On a terminal: lines that end between words. Terminals end them anywhere. Commands stay whole, to be copied."""
    width = width_of(stream)
    return "\n".join(
        line
        if len(line) <= width or line.lstrip().startswith("ottla ")
        else textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    dim: Iterable[bool] | None = None,
) -> Table:
    """A table without lines. A column `name#` has numbers, right-aligned; a column `name~` has sentences.

    Without any column name it has no header: a list of facts.
    """
    cells = tuple(tuple(_cell(value) for value in row) for row in rows)
    return Table(
        tuple(Column(name.rstrip("#~"), name.endswith("#"), name.endswith("~")) for name in columns),
        cells,
        tuple(dim) if dim is not None else (False,) * len(cells),
        title,
        header=any(name.rstrip("#~") for name in columns),
    )


def show(made: Table) -> None:
    out = sys.stdout
    typer.echo("\n".join(made.lines(width_of(out), colours=has_colours(out))))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = ",".join(str(each) for each in value) if isinstance(value, tuple | list) else str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; without one, only `--yes` confirms."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(f"{question} Nothing was changed: without a terminal, --yes confirms it.", exit_code=2)
    # While a loop runs, asyncio only records Ctrl-C, and the prompt would keep waiting.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo(err=True)
        agreed = False
    finally:
        signal.signal(signal.SIGINT, before)
    if not agreed:
        raise Failure("Nothing was changed.")
