"""Output for people: tables on standard output, notes on standard error; `bars` has the progress bars. [A]

Colours and bars appear only on a terminal. Values from outside (topic names, configuration) are never parsed
as markup. Piped tables are not cut off: a script that greps them sees whole words.
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

#: Table width without a terminal: wide enough for any row.
_PIPED_WIDTH = 10_000
#: Minimum width of a column of sentences; narrower ones are hard to read.
_SENTENCE_WIDTH = 30
#: Spaces between columns.
_GAP = 2


def console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream, highlight=False, markup=False, width=None if stream.isatty() else _PIPED_WIDTH
    )


def say(sentence: str) -> None:
    """Print the result of a command that changes something."""
    typer.echo(sentence)


def note(sentence: str, *, style: str = "") -> None:
    """Print a note on standard error, beside the result."""
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
    """A table without lines. A column `name#` has numbers, right-aligned; a column `name~` has sentences."""
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
            # Sentences may wrap; names and numbers must not.
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
        # In a narrow window, lines that the terminal wraps are easier to read than broken words.
        out.width = max(out.width, _least_width(made))
        out.print(made)
        return
    # Strip the spaces that pad the last column to the table width.
    with out.capture() as captured:
        out.print(made)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _least_width(made: Table) -> int:
    """The width at which names and numbers do not break and sentences have their minimum width."""
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
    """Ask for confirmation on a terminal; scripts are not asked."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
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
