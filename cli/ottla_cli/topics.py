"""`ottla topics`: list, create, describe, alter, delete, grow; `topics_move.py` has the moves. [A]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from ottla_cli.assignments import Assignment, assignments_of
from ottla_cli.completing import complete_topic
from ottla_cli.connecting import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin,
    describe_topic,
    describe_topics,
    run,
    settings,
)
from ottla_cli.failure import Failure
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import confirm, note, print_json, say, show, table
from ottla_cli.topics_move import move, replicas
from ottla_cli.watching import Watch, repeated
from ottla_client import Admin, ConfigEntry, NewTopic, TopicDescription
from ottla_client.errors import TopicAlreadyExists
from ottla_client.record import OffsetAndTimestamp, TopicPartition

app = typer.Typer(no_args_is_help=True)
for _command in (move, replicas):
    app.command()(_command)

_Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic)
]
_Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more topics.")]
_Topics = Annotated[
    list[str], typer.Argument(metavar="TOPIC", help="One or more topics.", autocompletion=complete_topic)
]
_Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic setting; may be repeated."),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check whether the change would be accepted.")]


@app.callback()
def _group() -> None:
    """Show and change topics.

    $ ottla topics create orders --partitions 6 --config retention.ms=86400000
    $ ottla topics list
    $ ottla topics describe orders
    """


@app.command("list")
def list_(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN", help="Only names that match, such as 'orders*'.")
    ] = None,
    internal: Annotated[bool, typer.Option("--internal", "-i", help="Include internal topics.")] = False,
    size: Annotated[
        bool,
        typer.Option("--size", "-s", help="Show the bytes of all replicas, the largest topic first."),
    ] = False,
    watch: Watch = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List topics.

    $ ottla topics list
    $ ottla topics list 'orders*' --json
    $ ottla topics list --size --internal
    """

    async def work() -> tuple[list[TopicDescription], Counter[str]]:
        sizes: Counter[str] = Counter()
        async with admin(bootstrap) as client:
            topics = await client.describe_topics()
            if size:
                for each in await client.describe_replicas():
                    sizes[each.tp.topic] += each.bytes
        return topics, sizes

    def shown(clear: Callable[[], None]) -> None:
        topics, sizes = run(work())
        found = [
            topic
            for topic in sorted(topics, key=lambda each: (-sizes[each.name], each.name))
            if (internal or not topic.internal)
            and (not patterns or any(fnmatchcase(topic.name, pattern) for pattern in patterns))
        ]
        clear()
        _list(found, sizes if size else None, filtered=bool(patterns), as_json=as_json)

    repeated(shown, watch=watch)


def _list(
    found: list[TopicDescription], sizes: Counter[str] | None, *, filtered: bool, as_json: bool
) -> None:
    rows = [
        {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "partitions": len(topic.partitions),
            "replication_factor": topic.replication_factor,
            "internal": topic.internal,
            **({} if sizes is None else {"bytes": sizes[topic.name]}),
        }
        for topic in found
    ]
    if as_json:
        print_json(rows)
    elif rows:
        keys = ("name", "partitions", "replication_factor")
        lines = [
            [*(row[key] for key in keys), *(() if sizes is None else (show_size(sizes[str(row["name"])]),))]
            for row in rows
        ]
        show(table(("topic", "partitions#", "replicas#", *(() if sizes is None else ("size#",))), lines))
        if sizes is not None and len(rows) > 1:
            note(f"{show_size(sum(sizes[topic.name] for topic in found))} in all replicas.")
    else:
        note("No topic matches." if filtered else "There are no topics yet: ottla topics create NAME")


@app.command()
def create(
    names: _Names,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", help="Number of partitions; -1 takes the broker's default.", min=-1
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            "-r",
            help="Replicas per partition; -1 takes the broker's default.",
            min=-1,
        ),
    ] = -1,
    config: _Configs = None,
    assignment: Assignment = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed without a change if the topic exists.")
    ] = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create topics.

    $ ottla topics create orders --partitions 6
    $ ottla topics create prices -p 3 -c cleanup.policy=compact
    $ ottla topics create placed -a 0=1,2 -a 1=2,3
    """
    configs, placed = settings(config, "--config"), assignments_of(assignment)
    if 0 in (partitions, replication_factor):
        raise Failure(
            "A topic needs at least one partition and one replica; leave the option out for the default.",
            exit_code=2,
        )

    async def work() -> list[dict[str, Any]]:
        rows = []
        async with admin(bootstrap) as client:
            for name in names:
                wanted = NewTopic(name, partitions, replication_factor, configs, placed)
                created = True
                try:
                    await client.create_topics([wanted], validate_only=dry_run)
                except TopicAlreadyExists:
                    if not if_not_exists:
                        raise
                    created = False
                rows.append({"name": name, "created": created and not dry_run})
                if not dry_run:
                    made = await describe_topic(client, name)
                    rows[-1] |= {
                        "topic_id": made.topic_id,
                        "partitions": len(made.partitions),
                        "replication_factor": made.replication_factor,
                    }
                if not as_json:
                    say(_creation_sentence(rows[-1], dry_run=dry_run))
        return rows

    rows = run(work())
    if as_json:
        print_json(rows)


def _creation_sentence(row: dict[str, Any], *, dry_run: bool) -> str:
    if dry_run:
        return f"Topic {row['name']} can be created."
    shape = f"{plural(row['partitions'], 'partition')}, replication factor {row['replication_factor']}"
    return f"Topic {row['name']} " + (f"created: {shape}." if row["created"] else f"exists already: {shape}.")


@app.command()
def describe(
    names: _Topics,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", "-a", help="Include settings that have their default value.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show partitions, leaders, replicas, offsets and configuration.

    $ ottla topics describe orders
    $ ottla topics describe orders prices --json
    """

    async def work() -> list[_Described]:
        async with admin(bootstrap) as client:
            topics = await describe_topics(client, names)
            return [await _described(client, topic) for topic in topics]

    found = run(work())
    if as_json:
        print_json([_as_json(*each, all_configs=all_configs) for each in found])
        return
    for number, each in enumerate(found):
        if number:
            typer.echo()
        _print(*each, all_configs=all_configs)


_Offsets = dict[TopicPartition, OffsetAndTimestamp]
_Described = tuple[TopicDescription, _Offsets, _Offsets, list[ConfigEntry]]


async def _described(client: Admin, topic: TopicDescription) -> _Described:
    led = [TopicPartition(topic.name, each.partition) for each in topic.partitions if each.leader >= 0]
    earliest = await client.list_offsets(dict.fromkeys(led, "earliest"))
    latest = await client.list_offsets(dict.fromkeys(led, "latest"))
    return topic, earliest, latest, await client.describe_configs(topic=topic.name)


def _as_json(
    topic: TopicDescription,
    earliest: _Offsets,
    latest: _Offsets,
    configs: list[ConfigEntry],
    *,
    all_configs: bool,
) -> dict[str, Any]:
    def offset(found: _Offsets, partition: int) -> int | None:
        each = found.get(TopicPartition(topic.name, partition))
        return None if each is None else each.offset

    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "internal": topic.internal,
        "replication_factor": topic.replication_factor,
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "offline": list(each.offline),
                "earliest": offset(earliest, each.partition),
                "latest": offset(latest, each.partition),
            }
            for each in topic.partitions
        ],
        "configs": [
            {"name": entry.name, "value": entry.value, "source": entry.source}
            for entry in configs
            if all_configs or not entry.is_default
        ],
    }


def _print(
    topic: TopicDescription,
    earliest: _Offsets,
    latest: _Offsets,
    configs: list[ConfigEntry],
    *,
    all_configs: bool,
) -> None:
    document = _as_json(topic, earliest, latest, configs, all_configs=all_configs)
    facts = [
        ("topic", topic.name),
        ("id", topic.topic_id),
        ("partitions", len(topic.partitions)),
        ("replicas", topic.replication_factor),
    ]
    show(table(("", ""), facts))
    typer.echo()
    rows = []
    for each in document["partitions"]:
        first, end = each["earliest"], each["latest"]
        count = None if first is None or end is None else end - first
        leader = each["leader"] if each["leader"] >= 0 else "none"
        rows.append(
            (
                each["partition"],
                leader,
                each["leader_epoch"],
                each["replicas"],
                each["isr"],
                first,
                end,
                count,
            )
        )
    columns = ("partition#", "leader#", "epoch#", "replicas", "in sync", "earliest#", "latest#", "offsets#")
    show(table(columns, rows))
    if document["configs"]:
        typer.echo()
        entries = document["configs"]
        show(
            table(
                ("setting", "value", "source"),
                ((entry["name"], entry["value"], entry["source"]) for entry in entries),
                dim=(entry["source"] == "default" for entry in entries),
            )
        )


@app.command()
def alter(
    name: _Topic,
    config: _Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", "-d", metavar="NAME", help="Reset to the default; may be repeated."),
    ] = None,
    partitions: Annotated[
        int | None,
        # `topics grow` is the clear form; this one stays for scripts.
        typer.Option("--partitions", "-p", help="The same as `topics grow`.", hidden=True),
    ] = None,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings; `ottla topics grow` adds partitions.

    $ ottla topics alter orders --config retention.ms=3600000
    $ ottla topics alter orders --delete-config retention.ms
    """
    changes: dict[str, str | None] = {**settings(config, "--config"), **dict.fromkeys(delete_config or [])}
    if not changes and partitions is None:
        raise Failure(
            "Name a change: --config NAME=VALUE or --delete-config NAME; `ottla topics grow` adds partitions.",
            exit_code=2,
        )

    async def work() -> None:
        async with admin(bootstrap) as client:
            await describe_topic(client, name)
            if changes:
                await client.alter_configs(changes, topic=name, validate_only=dry_run)
            if partitions is not None:
                await client.create_partitions(name, partitions, validate_only=dry_run)

    run(work())
    done = [f"{key} = {value}" if value is not None else f"{key} is unset" for key, value in changes.items()]
    done += [f"partitions = {partitions}"] if partitions is not None else []
    if as_json:
        print_json({"name": name, "altered": not dry_run, "configs": changes, "partitions": partitions})
    else:
        say(f"Topic {name} {'can be altered' if dry_run else 'altered'}: {', '.join(done)}.")


@app.command()
def grow(
    name: _Topic,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="The new number of partitions.")
    ] = None,
    by: Annotated[int | None, typer.Option("--by", help="Number of partitions to add.", min=1)] = None,
    assignment: Assignment = None,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Add partitions. This cannot be undone, and keys map to other partitions afterwards.

    $ ottla topics grow orders --partitions 12
    $ ottla topics grow orders --by 2
    $ ottla topics grow orders --by 2 -a 6=1,2 -a 7=2,3
    """
    placed = assignments_of(assignment)
    if (partitions is None) == (by is None):
        raise Failure(
            "Give either the new number with --partitions, or how many to add with --by.", exit_code=2
        )

    async def work() -> tuple[int, int]:
        async with admin(bootstrap) as client:
            before = len((await describe_topic(client, name)).partitions)
            total = partitions if partitions is not None else before + (by or 0)
            await client.create_partitions(name, total, replica_assignments=placed, validate_only=dry_run)
            return before, total

    before, total = run(work())
    if as_json:
        print_json({"name": name, "grown": not dry_run, "before": before, "partitions": total})
    else:
        verb = "can grow" if dry_run else "has grown"
        say(f"Topic {name} {verb} from {before} to {plural(total, 'partition')}.")


@app.command()
def delete(
    names: _Topics,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed if the topic does not exist.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete topics with all their records.

    $ ottla topics delete orders
    $ ottla topics delete old-orders older-orders --yes
    """
    question = f"Delete {', '.join(names)} with all records?"

    async def work() -> list[str]:
        async with admin(bootstrap) as client:
            wanted = names
            if if_exists:
                there = await client.list_topics(include_internal=True)
                wanted = [name for name in names if name in there]
            if wanted:
                await describe_topics(client, wanted)
                confirm(question, yes=yes)
                await client.delete_topics(wanted)
            return wanted

    gone = run(work())
    if as_json:
        print_json({"deleted": gone})
    else:
        say(f"Deleted: {', '.join(gone)}." if gone else "Nothing to delete: the topics do not exist.")
