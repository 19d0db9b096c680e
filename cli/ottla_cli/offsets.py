"""`ottla offsets`: first and end offsets, offsets by time, and delete-records. [A]"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ottla_cli.connecting import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin,
    check_partitions,
    describe_topic,
    describe_topics,
    run,
    usage,
)
from ottla_cli.failure import Failure
from ottla_cli.position import parse_position
from ottla_cli.quantities import plural, show_time
from ottla_cli.screen import confirm, print_json, say, show, table
from ottla_client import OffsetAndTimestamp, TopicPartition

app = typer.Typer(no_args_is_help=True)

_Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", help="Only this partition; may be repeated.", min=0)
]


@app.callback()
def _group() -> None:
    """List offsets of partitions, and delete records.

    $ ottla offsets list orders
    $ ottla offsets list orders --at -1h
    $ ottla offsets delete-records orders --partition 0 --before 1000
    """


@app.command("list")
def list_(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more topics.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Also the first record at or after this time (ISO, ms, or -1h)."
        ),
    ] = None,
    partition: _Partitions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the first and the end offset of each partition, and the offset for a time.

    $ ottla offsets list orders
    $ ottla offsets list orders --at 2026-03-31T14:00Z --json

    `-` (null with --json) means: no such record, or the partition has no
    leader.
    """
    moment = None
    if at is not None:
        position = usage(parse_position, at, int(time.time() * 1000))
        if position.kind != "time":
            raise Failure(f"--at takes a time such as 2026-03-31T14:00Z or -1h, not {at!r}.", exit_code=2)
        moment = position.value

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            described = await describe_topics(client, topics)
            wanted = [
                TopicPartition(topic.name, number)
                for topic in described
                for number in check_partitions(topic, partition)
            ]
            # Skip partitions without a leader: show the others without waiting for an election.
            led = {TopicPartition(topic.name, p.partition) for topic in described for p in topic.partitions
                   if p.leader >= 0}  # fmt: skip
            asked = [tp for tp in wanted if tp in led]
            earliest = await client.list_offsets(dict.fromkeys(asked, "earliest"))
            latest = await client.list_offsets(dict.fromkeys(asked, "latest"))
            newest = await client.list_offsets(dict.fromkeys(asked, "max_timestamp"))
            found = {} if moment is None else await client.list_offsets(dict.fromkeys(asked, moment))
        return [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "earliest": _offset(earliest.get(tp)),
                "latest": _offset(latest.get(tp)),
                "max_timestamp": _timestamp(newest.get(tp)),
                **({} if moment is None else {"offset_at": _offset(found.get(tp)),
                                              "timestamp_at": _timestamp(found.get(tp))}),
            }
            for tp in wanted
        ]  # fmt: skip

    rows = run(work())
    if as_json:
        print_json(rows)
        return
    columns = ["topic", "partition#", "earliest#", "latest#", "offsets#", "newest record"]
    columns += ["offset at time#", "its time"] if moment is not None else []
    show(table(columns, (_row(row, with_time=moment is not None) for row in rows)))


def _offset(found: OffsetAndTimestamp | None) -> int | None:
    """The offset; None if there is no such record, or the partition has no leader."""
    return None if found is None or found.offset < 0 else found.offset


def _timestamp(found: OffsetAndTimestamp | None) -> int | None:
    return None if found is None or found.offset < 0 else found.timestamp_ms


def _row(row: dict[str, Any], *, with_time: bool) -> list[object]:
    def moment(value: int | None) -> str:
        return "-" if value is None else show_time(value)

    count = None if row["latest"] is None else row["latest"] - row["earliest"]
    cells = [
        row["topic"],
        row["partition"],
        row["earliest"],
        row["latest"],
        count,
        moment(row["max_timestamp"]),
    ]
    return [*cells, row["offset_at"], moment(row["timestamp_at"])] if with_time else cells


@app.command("delete-records")
def delete_records(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="POSITION",
            help="Delete records before this offset, time or age; latest: all.",
        ),
    ],
    partition: _Partitions = None,
    all_partitions: Annotated[bool, typer.Option("--all", help="All partitions.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete records from the beginning of partitions.

    $ ottla offsets delete-records orders --partition 0 --before 1000
    $ ottla offsets delete-records orders --all --before -7d
    $ ottla offsets delete-records orders --all --before latest --yes
    """
    position = usage(parse_position, before, int(time.time() * 1000))
    if position.kind not in ("offset", "time", "latest"):
        raise Failure("--before takes an offset, a time, an age such as -7d, or latest.", exit_code=2)
    if bool(partition) == all_partitions:
        raise Failure("Name the partitions: --partition N (may be repeated) or --all.", exit_code=2)

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await describe_topic(client, topic)
            wanted = [TopicPartition(topic, number) for number in check_partitions(found, partition)]
            earliest = await client.list_offsets(dict.fromkeys(wanted, "earliest"))
            latest = await client.list_offsets(dict.fromkeys(wanted, "latest"))
            cuts = {tp: each.offset for tp, each in latest.items()}
            if position.kind == "offset":
                # A partition given by number must have the offset; with --all it is clamped to each end offset.
                cuts = {tp: min(position.value, cut) if all_partitions else position.value
                        for tp, cut in cuts.items()}  # fmt: skip
            if position.kind == "time":
                times = await client.list_offsets(dict.fromkeys(wanted, position.value))
                cuts |= {tp: each.offset for tp, each in times.items() if each.offset >= 0}
            # Records that are deleted already are not an error.
            cuts = {tp: max(cut, earliest[tp].offset) for tp, cut in cuts.items()}
            doomed = sum(cuts[tp] - earliest[tp].offset for tp in wanted)
            confirm(f"Delete {plural(doomed, 'record')} of {topic}?", yes=yes or not doomed)
            low = await client.delete_records(cuts)
        return [
            {"topic": tp.topic, "partition": tp.partition, "before": earliest[tp].offset, "earliest": low[tp]}
            for tp in wanted
        ]

    rows = run(work())
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(f"{topic} partition {row['partition']} now begins at offset {row['earliest']}.")
