"""`--watch`: run a command again every two seconds, on a cleared screen, until Ctrl-C. [A]"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from ottla_cli.failure import Failure

_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again every two seconds, until Ctrl-C.")]


def repeated(show: Callable[[Callable[[], None]], None], *, watch: bool) -> None:
    """Call `show` once, or until Ctrl-C. It fetches, calls its argument (which clears the screen), and prints.

    If it fails after it has succeeded once, its sentence is shown instead: brokers come back.
    """
    if not watch:
        show(lambda: None)
        return

    def clear() -> None:
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR)

    succeeded = False
    try:
        while True:
            try:
                show(clear)
                succeeded = True
            except Failure as failed:
                if not succeeded:
                    raise
                clear()
                typer.echo(f"{time.strftime('%H:%M:%S')}  {failed}")
            sys.stdout.flush()
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        raise typer.Exit from None
