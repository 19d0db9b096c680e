"""`ottla transactions`: list and describe transactions, and abort those that hang. [A]"""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Annotated, Any

import typer

from ottla_cli.choices import listed
from ottla_cli.connecting import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin,
    describe_topic,
    describe_topics,
    run,
    similar,
    usage,
)
from ottla_cli.failure import Failure
from ottla_cli.quantities import parse_duration_ms, plural, show_duration, show_time
from ottla_cli.screen import confirm, note, print_json, say, show, table
from ottla_client import Admin, TopicPartition
from ottla_client.leaders import Producers
from ottla_client.transaction_admin import HangingTransaction, TransactionDescription
from ottla_core.errors import TransactionalIdNotFound

app = typer.Typer(no_args_is_help=True)


class State(StrEnum):
    """States, with Kafka's names."""

    Empty = "Empty"
    Ongoing = "Ongoing"
    PrepareCommit = "PrepareCommit"
    PrepareAbort = "PrepareAbort"
    CompleteCommit = "CompleteCommit"
    CompleteAbort = "CompleteAbort"


#: The coordinator has a transaction that is not complete.
_UNDECIDED = ("Ongoing", "PrepareCommit", "PrepareAbort")


@app.callback()
def _group() -> None:
    """List, describe and abort transactions.

    $ ottla transactions list --state Ongoing
    $ ottla transactions describe billing-0
    $ ottla transactions abort billing-0
    $ ottla transactions find-hanging

    Consumers with read_committed wait behind the oldest open transaction of a
    partition. If they stall, look for an old one with `list --longer-than`; if
    no coordinator knows it, `find-hanging` finds it.
    """


@app.command("list")
def list_(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN", help="Only ids that match, such as 'billing*'.")
    ] = None,
    state: Annotated[
        list[State] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            case_sensitive=False,
            help=f"Only this state: {listed(State)}; may be repeated.",
        ),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option("--longer-than", metavar="TIME", help="Only those that began so long ago, as 5m."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with the state of their last transaction.

    $ ottla transactions list
    $ ottla transactions list 'billing*' --state Ongoing --longer-than 10m
    """
    min_duration_ms = 0 if longer_than is None else usage(parse_duration_ms, longer_than)

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.list_transactions(
                states=[str(each) for each in state or ()], min_duration_ms=min_duration_ms
            )
        return [
            {
                "transactional_id": each.transactional_id,
                "state": each.state,
                "producer_id": each.producer_id,
            }
            for each in found
            if not patterns or any(fnmatchcase(each.transactional_id, pattern) for pattern in patterns)
        ]

    rows = run(work())
    if as_json:
        print_json(rows)
    elif rows:
        show(table(("transactional id", "state", "producer id#"), (list(row.values()) for row in rows)))
    elif patterns or state or longer_than:
        note("No transaction matches.")
    else:
        note("There are no transactional ids; a producer with a transactional.id creates one.")


@app.command()
def describe(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="One or more transactional ids.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show state, producer, and the partitions of an open transaction.

    $ ottla transactions describe billing-0
    """
    found = run(_described(bootstrap, ids))
    now_ms = time.time() * 1000
    if as_json:
        print_json([_as_json(each) for each in found])
        return
    for number, each in enumerate(found):
        if number:
            say("")
        _show(each, now_ms)


async def _described(bootstrap: str, ids: list[str]) -> list[TransactionDescription]:
    async with admin(bootstrap) as client:
        return [await _one(client, each) for each in ids]


async def _one(client: Admin, transactional_id: str) -> TransactionDescription:
    try:
        (found,) = await client.describe_transactions([transactional_id])
    except TransactionalIdNotFound:
        close = similar(
            transactional_id, [each.transactional_id for each in await client.list_transactions()]
        )
        hint = "`ottla transactions list` lists all ids."
        if close:
            hint = f"Did you mean {' or '.join(map(repr, close))}?"
        raise Failure(f"There is no transactional id {transactional_id!r}. {hint}") from None
    return found


def _show(each: TransactionDescription, now_ms: float) -> None:
    say(f"{each.transactional_id}: {each.state}, {plural(len(each.partitions), 'partition')}")
    # A prepared transaction has no timeout of its producer's.
    timeout = "" if each.is_prepared else f", timeout {show_duration(each.timeout_ms / 1000)}"
    say(
        f"producer {each.producer_id}, epoch {each.producer_epoch}, coordinator {each.coordinator_id}{timeout}"
    )
    if each.is_prepared:
        say("prepared: another process is going to commit or abort it")
    if each.state in _UNDECIDED and each.started_ms is not None:
        age = show_duration(max(0.0, now_ms - each.started_ms) / 1000)
        say(f"began {show_time(each.started_ms)}, {age} ago")
    if each.partitions:
        rows = [
            [topic, ", ".join(str(tp.partition) for tp in same)]
            for topic, same in groupby(sorted(each.partitions), lambda tp: tp.topic)
        ]
        show(table(("topic", "partitions"), rows))


def _as_json(each: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_ms": each.timeout_ms,
        "started_ms": each.started_ms,
        "prepared": each.is_prepared,
        "coordinator_id": each.coordinator_id,
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in each.partitions],
    }


@app.command()
def producers(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    open_only: Annotated[
        bool, typer.Option("--open", help="Only producers with an open transaction.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the producers of each partition, and where open transactions begin.

    An open transaction holds back consumers with read_committed. `ottla
    transactions find-hanging` tells which of them no coordinator will end.

    $ ottla transactions producers orders --open
    """

    async def work() -> Producers:
        async with admin(bootstrap) as client:
            described = await describe_topic(client, topic)
            numbers = [each.partition for each in described.partitions]
            return await client.describe_producers([TopicPartition(topic, number) for number in numbers])

    rows = list(_producer_rows(run(work()), open_only=open_only))
    if as_json:
        print_json(rows)
    elif not rows:
        note("There is no open transaction." if open_only else "No producer is remembered.")
    else:
        columns = ("partition#", "producer id#", "epoch#", "last write", "sequence#", "open from#")
        cells = ([show_time(v) if k == "last_timestamp_ms" else v for k, v in row.items()] for row in rows)
        show(table(columns, cells))


def _producer_rows(found: Producers, *, open_only: bool) -> Iterable[dict[str, Any]]:
    for tp, known in sorted(found.items()):
        for each in known:
            if not open_only or each.transaction_first_offset is not None:
                yield {
                    "partition": tp.partition,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "last_timestamp_ms": each.last_timestamp_ms,
                    "last_sequence": each.last_sequence,
                    "transaction_first_offset": each.transaction_first_offset,
                }


@app.command("find-hanging")
def find_hanging(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Only these topics; otherwise all.")
    ] = None,
    longer_than: Annotated[
        str,
        typer.Option("--longer-than", metavar="TIME", help="Only those whose last record is so old."),
    ] = "15m",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Find open transactions that no coordinator is going to end.

    They hold back consumers with read_committed, and retention and compaction,
    until they are aborted. Younger ones than --longer-than are not shown: give
    the longest transaction timeout of your producers.

    $ ottla transactions find-hanging
    $ ottla transactions find-hanging orders --longer-than 1h
    """
    min_duration_ms = usage(parse_duration_ms, longer_than)

    async def work() -> list[HangingTransaction]:
        async with admin(bootstrap) as client:
            names = list(topics or await client.list_topics(include_internal=True))
            described = await describe_topics(client, names) if names else []
            every = [TopicPartition(one.name, each.partition) for one in described for each in one.partitions]
            return await client.find_hanging_transactions(every, min_duration_ms=min_duration_ms)

    found = run(work())
    if as_json:
        print_json([_hanging_as_json(each) for each in found])
        return
    if not found:
        note("No transaction hangs.")
        return
    now_ms = time.time() * 1000
    columns = ("topic", "partition#", "start offset#", "producer id#", "epoch#", "last record#")
    rows = [
        [*each.partition, each.first_offset, each.producer_id, each.producer_epoch, _ago(each, now_ms)]
        for each in found
    ]
    show(table(columns, rows))
    (topic, partition), offset = found[0].partition, found[0].first_offset
    note(
        "Abort each in its partition, for example:\n"
        f"ottla transactions abort --topic {topic} -p {partition} --start-offset {offset}"
    )


def _ago(each: HangingTransaction, now_ms: float) -> str:
    return f"{show_duration(max(0.0, now_ms - each.last_timestamp_ms) / 1000)} ago"


def _hanging_as_json(each: HangingTransaction) -> dict[str, Any]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "start_offset": each.first_offset,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "last_timestamp_ms": each.last_timestamp_ms,
    }


@app.command()
def abort(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Transactional ids with a coordinator.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic of a hanging transaction.")] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="Its partition.")] = 0,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", min=0, help="Where it begins there.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Abort open transactions.

    By ID, the coordinator aborts the transaction and fences its producer. A
    transaction without a coordinator hangs: it is aborted in one partition, at
    the offset that `ottla transactions find-hanging` shows.

    $ ottla transactions abort billing-0
    $ ottla transactions abort --topic orders --partition 2 --start-offset 1042
    """
    hanging = topic is not None or start_offset is not None
    if bool(ids) == hanging:
        raise Failure("Name transactional ids, or --topic and --start-offset.", exit_code=2)
    if hanging:
        if topic is None or start_offset is None:
            raise Failure("A hanging transaction needs --topic and --start-offset.", exit_code=2)
        run(_abort_hanging(bootstrap, TopicPartition(topic, partition), start_offset, yes=yes))
        if as_json:
            print_json({"aborted": {"topic": topic, "partition": partition, "start_offset": start_offset}})
        else:
            say(f"The transaction at offset {start_offset} of {topic}-{partition} is aborted.")
        return
    aborted = run(_abort(bootstrap, list(ids or ()), yes=yes))
    if as_json:
        print_json({"aborted": aborted})
        return
    for each in ids or ():
        say(f"{each}: aborted." if each in aborted else f"{each}: there is no open transaction.")


async def _abort(bootstrap: str, ids: list[str], *, yes: bool) -> list[str]:
    async with admin(bootstrap) as client:
        found = [await _one(client, each) for each in ids]
        ongoing = [each.transactional_id for each in found if each.state == "Ongoing"]
        if ongoing:
            prepared = [each.transactional_id for each in found if each.is_prepared]
            warning = (
                f"{', '.join(prepared)}: prepared, so another process may rely on it. " if prepared else ""
            )
            confirm(f"{warning}Abort {', '.join(ongoing)}, and fence the producers?", yes=yes)
            await client.fence_producers(ongoing)
        return ongoing


async def _abort_hanging(bootstrap: str, tp: TopicPartition, offset: int, *, yes: bool) -> None:
    async with admin(bootstrap) as client:
        await describe_topic(client, tp.topic)
        confirm(
            f"Abort the transaction that begins at offset {offset} of {tp}? "
            "If its coordinator has committed it elsewhere, its records here are lost.",
            yes=yes,
        )
        await client.abort_transaction(tp, offset)
