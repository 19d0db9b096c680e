"""The `ottla` command: a registry of its sub-commands, each loaded only when it is called. [A]

To add one: a row here, and a module with a function (one command) or a `typer.Typer` (a group of them).
Modules may import what they like at their top; `ottla --help` loads none of them. A command that cannot do
its work raises `Failure`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

try:
    import typer
except ImportError:
    sys.exit("ottla: The command line needs a little more: pip install 'ottla[client]'.")

from ottla_cli.failure import Failure


class Command(NamedTuple):
    name: str
    #: `module:attribute` inside ottla_cli; the attribute is a function or a `typer.Typer`.
    where: str
    help: str


COMMANDS: tuple[Command, ...] = (
    Command("topics", "topics:app", "List, create, describe, alter, delete topics."),
    Command("produce", "produce:produce", "Write records from standard input."),
    Command("consume", "consume:consume", "Read records to standard output."),
    Command("offsets", "offsets:app", "First and last offsets, offsets for times, deleting records."),
    Command("groups", "groups:app", "Consumer groups: members, lag, moving and deleting."),
    Command("configs", "configs:app", "Settings of topics, groups and running brokers."),
    Command("cluster", "cluster:app", "Show brokers and controller."),
    Command("log", "log_dump:app", "Look into log files, without a broker."),
    Command("bench", "bench:app", "Measure writing, reading and latency."),
    Command("up", "up:up", "Run a local cluster until Ctrl-C."),
    Command("status", "status:status", "Show the local cluster of a data folder."),
    Command("down", "down:down", "Stop the local cluster of a data folder."),
    Command("config", "config_show:app", "Show a broker's settings and where each value comes from."),
)


def build(wanted: str | None) -> typer.Typer:
    """The app with one command loaded; the others are only listed. None loads all (shell completion)."""
    app = typer.Typer(
        name="ottla",
        help="Ottla: a replicated commit log that speaks Kafka's protocol.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    # A callback keeps this a group even while it has a single command.
    app.callback()(lambda: None)
    for command in COMMANDS:
        if wanted is not None and wanted != command.name:
            app.command(command.name, help=command.help)(_never_called)
            continue
        module, _, attribute = command.where.partition(":")
        loaded = getattr(import_module(f"ottla_cli.{module}"), attribute)
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=command.name, short_help=command.help)
        else:
            # Its own docstring is the help, with examples; the row's sentence is for the list.
            app.command(command.name, short_help=command.help)(loaded)
    return app


def _never_called() -> None:
    raise RuntimeError("a command was called that had not been loaded")


def main(argv: Sequence[str] | None = None) -> None:
    _open_missing_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    completing = any(name.startswith("_OTTLA_COMPLETE") for name in os.environ)
    wanted = None if completing else next((word for word in arguments if not word.startswith("-")), "")
    out = sys.stdout
    try:
        build(wanted)(args=arguments, prog_name="ottla")
    except SystemExit:
        if sys.stdout is out:
            raise
        # `ottla … | head`: the reader has seen enough. typer has noticed, and would call it a failure.
        sys.stdout = out
        _drop_output()
        sys.exit(141)
    except Failure as failed:
        sys.stderr.write(f"ottla: {failed}\n")
        sys.exit(failed.exit_code)
    except KeyboardInterrupt:
        # While modules were loading; commands have their own answer.
        sys.exit(130)
    except OSError as failed:
        # A full disk, a file that is not ours: nothing that a traceback would explain.
        sys.stderr.write(f"ottla: {_sentence(failed)}\n")
        _drop_output()
        sys.exit(1)


def _drop_output() -> None:
    """What is still buffered for standard output goes nowhere, so that the exit is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(failed: OSError) -> str:
    why = failed.strerror or str(failed)
    if failed.filename is not None:
        return f"{os.fsdecode(failed.filename)}: {why}."
    if failed.errno == errno.ENOSPC:
        return f"Not all could be written: {why}. Make room, and run it again."
    return f"{why}."


def _open_missing_streams() -> None:
    """`<&-` and some services close them; then the next file that is opened would be taken for one."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
