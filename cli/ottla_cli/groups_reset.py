"""`ottla groups reset-offsets`: change the committed offsets of a group; a dry run without `--execute`. [A]"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import typer

from ottla_cli.connecting import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin,
    check_partitions,
    describe_topics,
    run,
    usage,
)
from ottla_cli.failure import Failure
from ottla_cli.position import Position, parse_position
from ottla_cli.quantities import plural
from ottla_cli.screen import note, print_json, say, show, table
from ottla_client import Admin, TopicPartition
from ottla_client.group_admin import GroupDescription

_SHIFT = re.compile(r"[+-]\d{1,18}")
_AT_REST = ("Empty", "Dead")


def parse_target(text: str, now_ms: int) -> Position:
    """As `parse_position`, but -N and +N count from the committed offset. ValueError with a sentence."""
    if _SHIFT.fullmatch(text.strip()):
        return Position("shift", int(text))
    try:
        return parse_position(text, now_ms)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a target; write earliest, latest, an offset, +N or -N (from the committed "
            "offset), a time (2026-03-31T14:00Z, ms) or an age (-1h)."
        ) from None


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="New offsets: earliest, latest, an offset, +N, -N, a time or an age.",
        ),
    ],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="A topic; may be repeated.")
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics with committed offsets of the group.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition; may be repeated.", min=0),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Change the offsets; without this, only show them.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change the committed offsets of a group; members start there next time.

    Without --execute it only shows the changes. The group must have no
    members: stop them first.

    $ ottla groups reset-offsets billing --topic orders --to earliest
    $ ottla groups reset-offsets billing --topic orders --to -1h --execute
    $ ottla groups reset-offsets billing --topic orders -p 2 --to 1000 --execute
    $ ottla groups reset-offsets billing --all-topics --to -100 --execute

    A TARGET is earliest, latest, an offset, +N or -N (relative to the
    committed offset), a time (2026-03-31T14:00Z, or ms since 1970) or an age
    (-1h). The result is clamped to the range of the partition.
    """
    target = usage(parse_target, to, int(time.time() * 1000))
    if bool(topic) == all_topics:
        raise Failure("Name the topics: --topic NAME (may be repeated) or --all-topics.", exit_code=2)

    async def work() -> tuple[GroupDescription, list[dict[str, Any]]]:
        async with admin(bootstrap) as client:
            (described,) = await client.describe_groups([group])
            moves = await _moves(client, group, topic, partition, target)
            if execute:
                if described.state not in _AT_REST:
                    raise Failure(
                        f"Group {group!r} has {plural(len(described.members), 'member')} ({described.state}). "
                        "Stop them first: they would continue from their own positions."
                    )
                await client.alter_group_offsets(
                    group, {TopicPartition(row["topic"], row["partition"]): row["to"] for row in moves}
                )
            return described, moves

    described, rows = run(work())
    if as_json:
        print_json({"group": group, "executed": execute, "partitions": rows})
        return
    columns = ("topic", "partition#", "from#", "to#", "moves#")
    show(table(columns, ([*list(row.values()), _difference(row)] for row in rows)))
    if execute:
        say(f"Offsets of group {group} were reset.")
        return
    note("Nothing was changed; add --execute to apply this.")
    if described.state not in _AT_REST:
        note(f"The group has {plural(len(described.members), 'member')}; stop them before you use --execute.")


def _difference(row: dict[str, Any]) -> str | None:
    return None if row["from"] is None else f"{row['to'] - row['from']:+,}"


async def _moves(
    client: Admin,
    group: str,
    topics: list[str] | None,
    partitions: list[int] | None,
    target: Position,
) -> list[dict[str, Any]]:
    committed = {tp: each.offset for tp, each in (await client.group_offsets(group)).items()}
    wanted = topics or sorted({tp.topic for tp in committed})
    if not wanted:
        raise Failure(f"Group {group!r} has no committed offsets yet; name topics with --topic.")
    tps = [
        TopicPartition(found.name, number)
        for found in await describe_topics(client, wanted)
        for number in check_partitions(found, partitions)
    ]
    earliest = await client.list_offsets(dict.fromkeys(tps, "earliest"))
    latest = await client.list_offsets(dict.fromkeys(tps, "latest"))
    times = await client.list_offsets(dict.fromkeys(tps, target.value)) if target.kind == "time" else {}
    rows = []
    for tp in tps:
        first, end = earliest[tp].offset, latest[tp].offset
        if target.kind == "shift":
            if tp not in committed:
                raise Failure(
                    f"Group {group!r} has no committed offset in {tp}, so +N and -N cannot be used."
                )
            place = committed[tp] + target.value
        elif target.kind == "time":
            place = times[tp].offset if times[tp].offset >= 0 else end
        else:
            place = {"earliest": first, "latest": end}.get(target.kind, target.value)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "from": committed.get(tp),
                "to": max(first, min(place, end)),
            }
        )
    return rows
