"""Progress bars on standard error, shown only on a terminal. [A]

Separate from `screen`: most commands end before a bar would appear, and need not import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as ProgressTask
from rich.text import Text

from ottla_cli.quantities import show_count
from ottla_cli.screen import console


class _Rate(ProgressColumn):
    def __init__(self, show: Callable[[float], str]) -> None:
        super().__init__()
        self._show = show

    def render(self, task: ProgressTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{self._show(speed)}/s", style="cyan")


class _Count(MofNCompleteColumn):
    def __init__(self, show: Callable[[float], str]) -> None:
        super().__init__()
        self._show = show

    def render(self, task: ProgressTask) -> Text:
        total = "" if task.total is None else f"/{self._show(task.total)}"
        return Text(f"{self._show(task.completed)}{total}", style="green")


def progress(
    *,
    on: Console | None = None,
    shown: bool | None = None,
    transient: bool = False,
    show: Callable[[float], str] = show_count,
) -> Progress:
    """A bar with counts, rate and remaining time. Defaults: on standard error, and shown only on a terminal.

    `show` formats counts: `show_size` for bytes.
    """
    if shown is None:
        shown = sys.stderr.isatty()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        _Count(show),
        _Rate(show),
        TimeRemainingColumn(),
        console=on or console(stderr=True),
        transient=transient,
        disable=not shown,
        refresh_per_second=8,
    )
