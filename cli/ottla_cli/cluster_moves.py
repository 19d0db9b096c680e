"""`ottla cluster moves|drain|cordon|uncordon|unregister|elect`. [A]"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from ottla_cli.assignments import NoWait, Throttle, Yes, rate_of
from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run
from ottla_cli.failure import Failure
from ottla_cli.move_progress import as_json as moves_as_json
from ottla_cli.move_progress import begin, bytes_left, carry_out, check_empty, plan_table, request, watch
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import confirm, print_json, say, show, table
from ottla_client import Admin
from ottla_client.cluster_admin import Reassignment
from ottla_client.rebalance import Move, plan
from ottla_client.rebalance_board import CannotPlace
from ottla_client.rebalance_layout import read_layout
from ottla_client.record import TopicPartition

BrokerId = Annotated[int, typer.Argument(metavar="BROKER", help="The broker's id.", min=0)]


def moves(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Only partitions of these topics.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--watch", "-w", help="Show a bar until all moves are done.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the moves: partitions go back to their former brokers.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show partitions that move to other brokers, with the bytes left to copy.

    Bytes are estimated from the sizes of the logs. A broker copies a bounded number of
    partitions at once (num.concurrent.partition.movements.per.broker); other moves wait
    ("queued"), as do those of a partition without a leader or to a broker that is offline.

    $ ottla cluster moves
    $ ottla cluster moves --watch
    $ ottla cluster moves orders --cancel --yes
    """

    async def work() -> list[Reassignment]:
        async with admin(bootstrap) as client:
            moving = await client.list_partition_reassignments(topics or None)
            if cancel and moving:
                confirm(f"Cancel the moves of {plural(len(moving), 'partition')}?", yes=yes)
                await begin(client, {each.tp: None for each in moving})
            elif follow and moving:
                await watch(client, {each.tp for each in moving} if topics else None)
                moving = await client.list_partition_reassignments(topics or None)
            return moving

    moving = run(work())
    if as_json:
        print_json([_json(each) for each in moving])
    elif cancel:
        say(f"{plural(len(moving), 'move')} cancelled." if moving else "No partition is being moved.")
    elif not moving:
        say("No partition is being moved.")
    else:
        rows = [
            (
                f"{each.tp.topic}-{each.tp.partition}",
                tuple(r for r in each.replicas if r not in each.adding),
                each.target,
                f"{sum(r.in_sync for r in each.progress)}/{len(each.progress)}",
                show_size(bytes_left([each])),
                f"waits: {each.obstacle}" if each.obstacle else "",
            )
            for each in moving
        ]
        show(table(("partition", "from", "to", "in sync#", "bytes left#", ""), rows))


def _json(move: Reassignment) -> dict[str, Any]:
    return {
        "topic": move.tp.topic,
        "partition": move.tp.partition,
        "target": list(move.target),
        "adding": list(move.adding),
        "removing": list(move.removing),
        "waiting": move.waiting,
        "obstacle": move.obstacle or None,
        "progress": [
            {
                "broker": each.broker,
                "in_sync": each.in_sync,
                "bytes_copied": each.bytes_copied if each.bytes_copied >= 0 else None,
                "bytes_total": each.bytes_total if each.bytes_total >= 0 else None,
            }
            for each in move.progress
        ],
    }


def drain(
    broker: BrokerId,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the moves.")] = False,
    throttle: Throttle = None,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move all replicas of a broker to the others, so that it can be removed.

    The broker is cordoned first and stays so; `ottla cluster uncordon` lifts
    that. Writers and readers go on meanwhile. When it is empty, stop the broker
    and run `ottla cluster unregister`.

    $ ottla cluster drain 3 --dry-run
    $ ottla cluster drain 3 --yes --throttle 50MB
    """
    rate = rate_of(throttle)

    async def work() -> list[Move]:
        async with admin(bootstrap) as client:
            planned = await _drain_plan(client, broker)
            if not as_json and planned:
                show(plan_table(planned))
            if dry_run:
                return planned
            copied = show_size(sum(move.copied for move in planned))
            confirm(f"Move {plural(len(planned), 'partition')} ({copied} to copy)?", yes=yes)
            await client.cordon_broker(broker)
            # Planned again: a topic may have been created before the cordon.
            planned = await _drain_plan(client, broker)
            layout = await read_layout(client)
            if planned or layout.held_by(broker):  # Earlier moves away from it are waited for, too.
                if no_wait:
                    await request(client, planned, rate)
                else:
                    await carry_out(client, planned, rate, also=layout.leaving(broker))
                    await check_empty(client, [broker])
            return planned

    planned = run(work())
    if as_json:
        print_json({"broker": broker, "moves": moves_as_json(planned), "begun": not dry_run})
    elif not planned:
        say(f"Broker {broker} has no replicas." + ("" if dry_run else " It is cordoned."))
    elif not dry_run and not no_wait:
        say(f"Broker {broker} is empty and cordoned.")


async def _drain_plan(client: Admin, broker: int) -> list[Move]:
    layout = await read_layout(client)
    known = sorted(each.id for each in layout.brokers)
    if broker not in known:
        raise Failure(
            f"There is no broker {broker}; the cluster has {', '.join(map(str, known))}.", exit_code=2
        )
    try:
        return await asyncio.to_thread(plan, layout.planned({broker}), layout.partitions, balance=False)
    except CannotPlace as reason:
        raise Failure(f"Broker {broker} cannot be drained: {reason}") from None


def cordon(broker: BrokerId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Give a broker no new replicas from now on; it keeps those that it has.

    $ ottla cluster cordon 3
    """
    _set_cordon(bootstrap, broker, cordoned=True, as_json=as_json)


def uncordon(broker: BrokerId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Let a cordoned broker get new replicas again.

    $ ottla cluster uncordon 3
    """
    _set_cordon(bootstrap, broker, cordoned=False, as_json=as_json)


def _set_cordon(bootstrap: str, broker: int, *, cordoned: bool, as_json: bool) -> None:
    async def work() -> None:
        async with admin(bootstrap) as client:
            await (client.cordon_broker(broker) if cordoned else client.uncordon_broker(broker))

    run(work())
    if as_json:
        print_json({"broker": broker, "cordoned": cordoned})
    else:
        say(f"Broker {broker} " + ("is cordoned." if cordoned else "may get new replicas."))


def unregister(
    broker: BrokerId, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Remove a stopped broker without replicas from the cluster's record.

    $ ottla cluster drain 3 && ottla cluster unregister 3   # stop it in between
    """

    async def work() -> None:
        async with admin(bootstrap) as client:
            confirm(f"Remove broker {broker} from the cluster?", yes=yes)
            await client.unregister_broker(broker)

    run(work())
    if as_json:
        print_json({"broker": broker, "unregistered": True})
    else:
        say(f"Broker {broker} is no longer part of the cluster.")


def elect(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC[:PARTITION]", help="Only these topics or partitions; else all."),
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Elect out-of-sync replicas where no leader is left. Loses records."),
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Give leaderships back to the preferred replicas, or force unclean elections.

    $ ottla cluster elect
    $ ottla cluster elect orders payments:3
    $ ottla cluster elect orders:0 --unclean
    """

    async def work() -> list[Any]:
        async with admin(bootstrap) as client:
            chosen: list[TopicPartition] | None = None
            if partitions:
                chosen = []
                for text in partitions:
                    name, colon, number = text.rpartition(":")
                    if colon and number.isascii() and number.isdigit():
                        chosen.append(TopicPartition(name, int(number)))
                    else:
                        (topic,) = await client.describe_topics([text])
                        chosen += [TopicPartition(text, p.partition) for p in topic.partitions]
            if unclean:
                confirm("Records that only offline replicas have will be lost. Elect uncleanly?", yes=yes)
            return await client.elect_leaders(chosen, unclean=unclean)

    # A partition that has its leader already is no failure of this command.
    outcomes = [o for o in run(work()) if o.error is None or o.error.name != "ELECTION_NOT_NEEDED"]
    failed = [o for o in outcomes if o.error is not None]
    if as_json:
        print_json(
            [
                {"topic": o.tp.topic, "partition": o.tp.partition, "error": o.error.name if o.error else None}
                for o in outcomes
            ]
        )
    else:
        say(f"{plural(len(outcomes) - len(failed), 'leader')} elected.")
        if failed:
            rows = [(f"{o.tp.topic}-{o.tp.partition}", o.error.message) for o in failed]
            show(table(("partition", "reason~"), rows, title="Not elected:"))
    if failed:
        raise typer.Exit(1)
