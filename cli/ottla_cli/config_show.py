"""`ottla configs preview`: a broker's settings as it would resolve them, with the source of each value. [A]"""

from __future__ import annotations

from typing import Annotated

import typer

from ottla_cli import screen
from ottla_cli.broker_settings import pairs_of, read_broker_settings

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show a broker's settings before it starts; `ottla configs` shows those of running brokers.

    $ ottla configs preview
    """


@app.command("show")
def show(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only settings whose name contains one of these.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="A configuration file: TOML, or .properties.", envvar="OTTLA_CONFIG")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting, as on the broker's command line."),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from their default.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, for scripts.")] = False,
) -> None:
    """Show the settings that a broker would start with: value, source (flag, variable, file, default), meaning.

    A flag overrides a variable, a variable the file, and the file the default.

    $ ottla configs preview retention
    $ ottla configs preview --config broker.properties --changed
    $ OTTLA_NUM_PARTITIONS=3 ottla configs preview num.partitions
    """
    resolved = read_broker_settings(config, pairs_of(set_))
    from ottla_broker.config import SETTINGS
    from ottla_broker.topic_config import definitions

    docs = {synonym.name: made.documentation for made in definitions() for synonym in made.synonyms}
    docs.update((name, made.doc) for name, made in SETTINGS.items())
    rows = [
        {"name": name, "value": origin.value, "source": origin.source, "doc": docs.get(name, "")}
        for name, origin in resolved.sources.items()
        if (not names or any(part in name for part in names)) and not (changed and origin.source == "default")
    ]
    if as_json:
        screen.print_json(rows)
    elif not rows:
        screen.note("No setting matches." if names else "All settings have their default values.")
    else:
        _print(rows, resolved.warnings)


def _print(rows: list[dict[str, str]], warnings: tuple[str, ...]) -> None:
    screen.show(
        screen.table(
            ("setting", "value", "source", "what it does~"),
            ([row[key] for key in ("name", "value", "source", "doc")] for row in rows),
            dim=(row["source"] == "default" for row in rows),
        )
    )
    for warning in warnings:
        screen.note(warning, style="yellow")
