"""`ottla configs`: settings of topics, consumer groups and running brokers, with the source of each value. [A]

(`ottla configs preview` shows the settings of a broker before it starts.)
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer

from ottla_cli.config_show import show as preview
from ottla_cli.connecting import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin,
    describe_topic,
    run,
    settings,
    similar,
)
from ottla_cli.failure import Failure
from ottla_cli.screen import note, print_json, say, show, table
from ottla_client import Admin, ConfigEntry

app = typer.Typer(no_args_is_help=True)
app.command("preview")(preview)

_TopicOption = Annotated[str | None, typer.Option("--topic", "-t", help="Settings of this topic.")]
_GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="Settings of this consumer group.")]
_BrokerOption = Annotated[int | None, typer.Option("--broker", help="Settings of this broker, by its id.")]
_AllBrokers = Annotated[bool, typer.Option("--all-brokers", help="The default for all brokers.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check whether the change would be accepted.")]


@app.callback()
def _group() -> None:
    """Show and change settings of topics, groups and running brokers.

    $ ottla configs describe --topic orders
    $ ottla configs set --topic orders retention.ms=3600000
    $ ottla configs unset --topic orders retention.ms
    $ ottla configs set --group billing consumer.assignor=cooperative-sticky
    """


class _Whose(NamedTuple):
    """The resource whose settings are meant; exactly one field is set."""

    topic: str | None = None
    group: str | None = None
    broker: int | None = None
    all_brokers: bool = False

    @classmethod
    def of(
        cls, topic: str | None, group: str | None, broker: int | None, *, all_brokers: bool = False
    ) -> _Whose:
        if (topic is not None) + (group is not None) + (broker is not None) + all_brokers != 1:
            raise Failure(
                "Name a resource: --topic NAME, --group ID, --broker ID, or, for changes, --all-brokers.",
                exit_code=2,
            )
        return cls(topic, group, broker, all_brokers)

    def __str__(self) -> str:
        if self.topic is not None:
            return f"Topic {self.topic}"
        if self.group is not None:
            return f"Group {self.group}"
        return "All brokers" if self.all_brokers else f"Broker {self.broker}"

    @property
    def document(self) -> dict[str, Any]:
        if self.topic is not None:
            return {"topic": self.topic}
        return {"group": self.group} if self.group is not None else {"broker": self.broker}

    async def check(self, client: Admin) -> None:
        """Fail if the topic or broker does not exist. A group may have settings before it exists."""
        if self.topic is not None:
            await describe_topic(client, self.topic)
        if self.broker is not None:
            there = [each.id for each in (await client.describe_cluster()).brokers]
            if self.broker not in there:
                known = ", ".join(map(str, sorted(there)))
                raise Failure(f"There is no broker {self.broker}; there are: {known}.")

    async def settings(self, client: Admin) -> list[ConfigEntry]:
        return await client.describe_configs(topic=self.topic, broker=self.broker, group=self.group)


@app.command()
def describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only settings whose name contains this.")
    ] = None,
    topic: _TopicOption = None,
    group: _GroupOption = None,
    broker: _BrokerOption = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from their default.")
    ] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Also show what each setting does.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show settings: value and source (topic, group, dynamic-broker, static-broker, default).

    $ ottla configs describe --topic orders --changed
    $ ottla configs describe --broker 0 retention
    $ ottla configs describe --group billing --docs
    """
    whose = _Whose.of(topic, group, broker)

    async def work() -> list[ConfigEntry]:
        async with admin(bootstrap) as client:
            await whose.check(client)
            return await whose.settings(client)

    entries = [
        entry
        for entry in sorted(run(work()), key=lambda each: each.name)
        if not (changed and entry.is_default) and (not names or any(part in entry.name for part in names))
    ]
    if as_json:
        print_json([_document(entry) for entry in entries])
    elif not entries:
        note("No setting matches." if names else "All settings have their default values.")
    else:
        columns = ["setting", "value", "source", *(["what it does~"] if docs else [])]
        rows = (
            (e.name, _value(e), e.source + (", fixed" if e.read_only else ""), e.documentation)[
                : len(columns)
            ]
            for e in entries
        )
        show(table(columns, rows, dim=(entry.is_default for entry in entries)))


def _value(entry: ConfigEntry) -> str:
    if entry.sensitive:
        return "(hidden)"
    return "-" if entry.value is None else entry.value or '""'


def _document(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source,
        "type": entry.type,
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
        "documentation": entry.documentation,
    }


@app.command("set")
def set_(
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="Settings and their values.")],
    topic: _TopicOption = None,
    group: _GroupOption = None,
    broker: _BrokerOption = None,
    all_brokers: _AllBrokers = False,
    append: Annotated[bool, typer.Option("--append", help="Add to a list, such as cleanup.policy.")] = False,
    subtract: Annotated[bool, typer.Option("--subtract", help="Remove from a list.")] = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Set values; settings that are not named keep theirs.

    $ ottla configs set --topic orders retention.ms=3600000 segment.bytes=1048576
    $ ottla configs set --topic orders cleanup.policy=compact --append
    $ ottla configs set --all-brokers log.retention.ms=86400000
    """
    if append and subtract:
        raise Failure("Choose one of --append and --subtract.", exit_code=2)
    kind = "append" if append else "subtract" if subtract else "set"
    _change(
        {**settings(values, "configs set")},
        _Whose.of(topic, group, broker, all_brokers=all_brokers),
        kind,
        dry_run,
        bootstrap,
        as_json=as_json,
    )


@app.command()
def unset(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Settings to reset.")],
    topic: _TopicOption = None,
    group: _GroupOption = None,
    broker: _BrokerOption = None,
    all_brokers: _AllBrokers = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Reset settings to their default.

    $ ottla configs unset --topic orders retention.ms
    """
    whose = _Whose.of(topic, group, broker, all_brokers=all_brokers)
    _change(dict.fromkeys(names), whose, "set", dry_run, bootstrap, as_json=as_json)


def _change(
    changes: dict[str, str | None],
    whose: _Whose,
    kind: str,
    dry_run: bool,
    bootstrap: str,
    *,
    as_json: bool,
) -> None:
    async def work() -> None:
        async with admin(bootstrap) as client:
            await whose.check(client)
            if not whose.all_brokers:
                there = await whose.settings(client)
                _check_names(list(changes), [entry.name for entry in there])
            await client.alter_configs(
                changes,
                topic=whose.topic,
                broker=whose.broker,
                group=whose.group,
                all_brokers=whose.all_brokers,
                kind=kind,
                validate_only=dry_run,
            )

    run(work())
    if as_json:
        print_json({**whose.document, "altered": not dry_run, "changes": changes})
        return
    words = {"set": "=", "append": "+=", "subtract": "-="}
    done = [
        f"{name} is back to its default" if value is None else f"{name} {words[kind]} {value}"
        for name, value in changes.items()
    ]
    say(f"{whose}: {', '.join(done)}{' would be accepted' if dry_run else ''}.")


def _check_names(names: list[str], there: list[str]) -> None:
    """Refuse a misspelt setting here, where similar names can be suggested."""
    for name in names:
        if name not in there:
            close = similar(name, there)
            meant = f" Did you mean {' or '.join(close)}?" if close else " See: ottla configs describe --docs"
            raise Failure(f"There is no setting {name!r}.{meant}")
