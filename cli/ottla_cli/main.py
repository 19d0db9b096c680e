"""The `ottla` command: a registry of its sub-commands, each loaded only when it is called. [A]

To add a command: a row here, and a module with a function (one command) or a `typer.Typer` (a group).
Modules may import anything at their top; `ottla --help` loads none of them. A command that fails
raises `Failure`.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

try:
    import typer
except ImportError:
    sys.exit("ottla: The command line needs more packages: pip install 'ottla[client]'.")

from ottla_cli.failure import Failure
from ottla_core.light_imports import use_bare_packages


class Command(NamedTuple):
    name: str
    #: `module:attribute` inside ottla_cli; the attribute is a function or a `typer.Typer`.
    where: str
    help: str
    #: A former name, which scripts may use.
    hidden: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("topics", "topics:app", "List, create, describe, alter, move, delete topics."),
    Command("produce", "produce:produce", "Write records from standard input."),
    Command("consume", "consume:consume", "Read records to standard output."),
    Command("offsets", "offsets:app", "List offsets, also by time; delete records."),
    Command("groups", "groups:app", "Consumer groups: list, describe, reset offsets, delete."),
    Command("transactions", "transactions:app", "Transactions: list, describe, find hanging ones, abort."),
    Command("configs", "configs:app", "Show and change settings of topics, groups, brokers."),
    Command("acls", "acls:app", "Who may do what: list, allow, deny, remove."),
    Command("quotas", "quotas:app", "Limits of users, client ids and addresses: list, set, delete."),
    Command("users", "users:app", "Users that log in with a password: list, create, delete."),
    Command("cluster", "cluster:app", "Show brokers and health; drain brokers; recover metadata."),
    Command("top", "top:top", "Live: brokers, topics by rate, groups by lag, busiest clients."),
    Command("log", "log_dump:app", "Inspect log files, without a broker."),
    Command("bench", "bench:app", "Measure produce and consume rates, and latency."),
    Command("up", "up:up", "Run a local cluster until Ctrl-C."),
    Command("down", "down:down", "Stop the local cluster of a data folder."),
    Command("local", "local:app", "The local cluster: up, status, down."),
    Command("status", "status:status", "Show the local cluster of a data folder: `local status`.", True),
    Command("config", "config_show:app", "Show a broker's settings: `configs preview`.", True),
)


def _version(wanted: bool) -> None:
    if wanted:
        from ottla_cli.version import facts

        for name, value in facts():
            typer.echo(f"{name} {value}")
        raise typer.Exit


def build(wanted: str | None) -> typer.Typer:
    """The app with only the wanted command loaded. None loads all commands (the generated reference)."""
    app = typer.Typer(
        name="ottla",
        help="Ottla: a replicated commit log that speaks Kafka's protocol.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for command in COMMANDS:
        if wanted is not None and wanted != command.name:
            app.command(command.name, help=command.help, hidden=command.hidden)(_never_called)
            continue
        module, _, attribute = command.where.partition(":")
        loaded = getattr(import_module(f"ottla_cli.{module}"), attribute)
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=command.name, short_help=command.help, hidden=command.hidden)
        else:
            # The docstring is the help, with examples; the row's sentence is for the list.
            app.command(command.name, short_help=command.help, hidden=command.hidden)(loaded)
    return app


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Show the version and exit.", callback=_version, is_eager=True),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="Take addresses, TLS and login from this profile of profiles.toml. Also after the command.",
            envvar="OTTLA_PROFILE",
        ),
    ] = None,
) -> None:
    """Options before the command."""


def _with_profile(arguments: list[str]) -> list[str]:
    """The arguments without `--profile NAME`, which may stand anywhere before `--`; the profile is in use then."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    name, rest, at = os.environ.get("OTTLA_PROFILE") or None, list[str](), 0
    while at < end:
        word = arguments[at]
        if word == "--profile" and at + 1 < end:
            name, at = arguments[at + 1], at + 1
        elif word.startswith("--profile="):
            name = word.partition("=")[2]
        else:
            rest.append(word)
        at += 1
    if name is not None:
        from ottla_cli.profiles import use

        use(name)
    return rest + arguments[end:]


def _never_called() -> None:
    raise RuntimeError("a command was called that is not loaded")


def main(argv: Sequence[str] | None = None) -> None:
    _open_missing_streams()
    if argv is None:  # called by a process of its own, not by a test
        use_bare_packages()
        gc.disable()  # While modules load it costs a tenth of the start, and finds nothing.
    arguments = list(sys.argv[1:] if argv is None else argv)
    completing = any(name.startswith("_OTTLA_COMPLETE") for name in os.environ)
    out = sys.stdout
    try:
        if not completing:
            arguments = _with_profile(arguments)
        words = arguments
        if completing:
            # The shell passes the line so far; only its command is loaded.
            line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
            words = _with_profile(line.split()[1:])
        wanted = next((word for word in words if not word.startswith("-")), "")
        app = build(wanted)
        if argv is None:
            gc.freeze()
            gc.enable()
        app(args=arguments, prog_name="ottla")
    except SystemExit:
        if sys.stdout is out:
            raise
        # `ottla … | head`: the reader has closed the pipe. typer would exit with 1.
        sys.stdout = out
        _drop_output()
        sys.exit(141)
    except Failure as failed:
        from ottla_cli.screen import fitted

        sys.stderr.write(fitted(f"ottla: {failed}", sys.stderr) + "\n")
        sys.exit(failed.exit_code)
    except KeyboardInterrupt:
        # Ctrl-C while modules were loading; `run` handles it in commands.
        sys.exit(130)
    except OSError as failed:
        # A full disk or missing permissions: a traceback would not help.
        sys.stderr.write(f"ottla: {_sentence(failed)}\n")
        _drop_output()
        sys.exit(1)


def _drop_output() -> None:
    """Discard buffered standard output, so that the exit prints no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(failed: OSError) -> str:
    why = failed.strerror or str(failed)
    if failed.filename is not None:
        return f"{os.fsdecode(failed.filename)}: {why}."
    if failed.errno == errno.ENOSPC:
        return f"The output is incomplete: {why}. Free disk space, and run the command again."
    return f"{why}."


def _open_missing_streams() -> None:
    """Reopen closed standard streams (`<&-`, some services); otherwise the next opened file takes their descriptor."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
