"""What people see: tables on standard output, notes on standard error; `bars` has the progress. [A]

Colours and bars appear only on a terminal. Values from outside (topic names, configuration) never pass for
markup. Tables are not cut off when they are piped: a script that greps them sees whole words.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ottla_cli.failure import Failure

#: Wide enough for any row when nobody looks at it through a window.
_PIPED_WIDTH = 10_000
#: Less than this of a sentence in one line is a ladder of words.
_SENTENCE_WIDTH = 30
#: Spaces between columns.
_GAP = 2


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream, highlight=False, markup=False, width=None if stream.isatty() else _PIPED_WIDTH
    )


def say(sentence: str) -> None:
    """The result of a command that changes something."""
    typer.echo(sentence)


def note(sentence: str, *, style: str = "") -> None:
    """A remark beside the result."""
    console(stderr=True).print(Text(sentence, style=style), soft_wrap=True)


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    dim: Iterable[bool] | None = None,
) -> Table:
    """A table without lines. A column `name#` is of numbers and stands to the right; one `name~` is of sentences."""
    made = Table(
        box=None,
        padding=(0, _GAP, 0, 0),
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for name in columns:
        made.add_column(
            name.rstrip("#~"),
            justify="right" if name.endswith("#") else "left",
            # Sentences can be read in lines, names and numbers cannot.
            no_wrap=not name.endswith("~"),
            overflow="fold",
            header_style="bold",
        )
    shades = iter(dim) if dim is not None else None
    for row in rows:
        style = "dim" if shades is not None and next(shades) else ""
        made.add_row(*(Text(_cell(value), style=style) for value in row))
    return made


def show(made: Table) -> None:
    out = console()
    if out.is_terminal:
        # In a narrow window whole lines that the terminal wraps are easier on the eyes than words in pieces.
        out.width = max(out.width, _least_width(made))
        out.print(made)
        return
    # Without the spaces that fill up the last column to the width of a window that is not there.
    with out.capture() as captured:
        out.print(made)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _least_width(made: Table) -> int:
    """What the table needs to show every name and number whole, and a few words of a sentence per line."""
    needed = 0
    for column in made.columns:
        wide = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        needed += (wide if column.no_wrap else min(wide, _SENTENCE_WIDTH)) + _GAP
    return needed


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        return ",".join(str(each) for each in value)
    return str(value)


def confirm(question: str, *, yes: bool) -> None:
    """Ask a person at a terminal; scripts know what they do."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    # While a loop runs, asyncio would only make a note of Ctrl-C, and the question would stand there as before.
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
