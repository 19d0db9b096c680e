"""`ottla cluster dirs` and `ottla cluster move-dir`: log directories of brokers, and moves between them. [A]"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ottla_cli.assignments import NoWait, Yes
from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, describe_topic, run
from ottla_cli.failure import Failure
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import confirm, print_json, say, show, table
from ottla_client import Admin
from ottla_client.cluster_admin import LogDir
from ottla_client.record import TopicPartition
from ottla_core.real.clock import RealClock

#: Between two looks at the copies.
_EVERY_S = 0.5


def dirs(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Only partitions of these topics.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the log directories of all brokers, and copies on their way between them.

    $ ottla cluster dirs
    $ ottla cluster dirs orders --json
    """

    async def work() -> list[LogDir]:
        async with admin(bootstrap) as client:
            return await client.describe_log_dirs(topics or None)

    found = run(work())
    if as_json:
        print_json([_json(each) for each in found])
        return
    rows = [
        (
            str(each.broker),
            each.path,
            "offline" if each.error else "online",
            str(sum(not r.is_future for r in each.replicas)),
            str(sum(r.is_future for r in each.replicas)),
            show_size(sum(r.bytes for r in each.replicas)),
            show_size(each.usable_bytes) if each.usable_bytes >= 0 else "",
        )
        for each in found
    ]
    show(table(("broker#", "directory~", "state", "partitions#", "arriving#", "size#", "free#"), rows))


def _json(found: LogDir) -> dict[str, Any]:
    return {
        "broker": found.broker,
        "path": found.path,
        "error": None if found.error is None else found.error.message,
        "total_bytes": found.total_bytes if found.total_bytes >= 0 else None,
        "usable_bytes": found.usable_bytes if found.usable_bytes >= 0 else None,
        "replicas": [
            {
                "topic": r.tp.topic,
                "partition": r.tp.partition,
                "bytes": r.bytes,
                "offset_lag": r.offset_lag,
                "future": r.is_future,
            }
            for r in found.replicas
        ],
    }


def move_dir(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic, or one partition.")],
    broker: Annotated[int, typer.Option("--broker", help="The broker's id.", min=0)],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="One of the broker's log directories.")],
    yes: Yes = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move partitions to another log directory of the same broker.

    Writers and readers go on meanwhile. A move back to the present directory
    cancels one that is under way. The broker's setting
    replica.alter.log.dirs.io.max.bytes.per.second bounds the rate.

    $ ottla cluster dirs orders
    $ ottla cluster move-dir orders:3 --broker 1 --to /data2/log
    """

    async def work() -> list[TopicPartition]:
        async with admin(bootstrap) as client:
            chosen = await _held(client, topic, broker)
            confirm(f"Move {plural(len(chosen), 'partition')} of broker {broker} to {to}?", yes=yes)
            outcomes = await client.alter_replica_log_dirs({(broker, tp): to for tp in chosen})
            for each in outcomes:
                if each.error is not None:
                    raise Failure(f"{each.tp.topic}-{each.tp.partition}: {each.error.message}")
            if not no_wait:
                await _wait(client, broker, chosen, to.rstrip("/") or "/")
            return chosen

    moved = run(work())
    if as_json:
        print_json(
            {
                "broker": broker,
                "directory": to,
                "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in moved],
                "complete": not no_wait,
            }
        )
    else:
        are = "are being moved" if no_wait else "are"
        say(f"{plural(len(moved), 'partition')} of broker {broker} {are} {'to' if no_wait else 'in'} {to}.")


async def _held(client: Admin, text: str, broker: int) -> list[TopicPartition]:
    """The named partitions that the broker has."""
    name, colon, number = text.rpartition(":")
    one = int(number) if colon and number.isascii() and number.isdigit() else None
    topic = await describe_topic(client, name if one is not None else text)
    found = [
        TopicPartition(topic.name, p.partition)
        for p in topic.partitions
        if broker in p.replicas and (one is None or p.partition == one)
    ]
    if not found:
        raise Failure(f"Broker {broker} has no replica of {text}.")
    return found


async def _wait(client: Admin, broker: int, chosen: list[TopicPartition], path: str) -> None:
    """Until no copy of them is on its way. Failure if one of them did not arrive."""
    clock, waiting = RealClock(), set(chosen)
    while True:
        found = await client.describe_log_dirs(sorted({tp.topic for tp in chosen}))
        mine = [(each.path, r) for each in found if each.broker == broker for r in each.replicas]
        if not any(r.is_future and r.tp in waiting for _, r in mine):
            missed = waiting - {r.tp for where, r in mine if where == path}
            if missed:
                tp = min(missed)
                raise Failure(
                    f"{tp.topic}-{tp.partition} was not moved; the log of broker {broker} says why "
                    "(it may have stopped, or the directory may be full or offline)."
                )
            return
        await clock.sleep(_EVERY_S)
