"""`ottla topics move` and `ottla topics replicas`. [A]

The planner is loaded when a command runs: `ottla topics list` would start noticeably later with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ottla_cli.assignments import (
    Assignment,
    NoWait,
    Throttle,
    Yes,
    assignments_of,
    brokers_of,
    rate_of,
    rotated,
)
from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, describe_topic, run
from ottla_cli.failure import Failure
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import confirm, print_json, say, show
from ottla_client import Admin

if TYPE_CHECKING:
    from ottla_client.rebalance import Move

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


def move(
    name: _Topic,
    to: Annotated[
        str | None, typer.Option("--to", metavar="B,B,…", help="Brokers for all partitions of the topic.")
    ] = None,
    assignment: Assignment = None,
    throttle: Throttle = None,
    yes: Yes = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move partitions to other brokers; the new replicas copy the log first.

    With --to, each partition prefers the next of the brokers as its leader.
    `ottla cluster moves` shows and cancels moves.

    $ ottla topics move orders --to 1,2,4 --throttle 50MB
    $ ottla topics move orders -a 0=1,2 -a 5=4,1 --no-wait
    """
    chosen, rate = assignments_of(assignment), rate_of(throttle)
    if (to is None) == (not chosen):
        raise Failure("Give either --to for all partitions, or --assignment for single ones.", exit_code=2)

    async def work() -> list[Move]:
        from ottla_client.rebalance import Move
        from ottla_client.rebalance_layout import read_layout

        async with admin(bootstrap) as client:
            topic = await describe_topic(client, name)
            targets: Mapping[int, Sequence[int]] = chosen
            if to is not None:
                targets = rotated(brokers_of(to, "--to"), range(len(topic.partitions)))
            beyond = [n for n in targets if n >= len(topic.partitions)]
            if beyond:
                raise Failure(f"Topic {name} has no partition {beyond[0]}.")
            layout = await read_layout(client)
            known = {each.id for each in layout.brokers}
            unknown = sorted({broker for each in targets.values() for broker in each} - known)
            if unknown:
                listed = ", ".join(map(str, sorted(known)))
                raise Failure(f"There is no broker {unknown[0]}; the cluster has {listed}.")
            placed = layout.partitions
            moves = [
                Move(name, p.partition, p.replicas, tuple(targets[p.partition]), p.size)
                for p in placed
                if p.topic == name and p.partition in targets and p.replicas != tuple(targets[p.partition])
            ]
            await _carry_out(client, moves, yes=yes, wait=not no_wait, throttle=rate, quiet=as_json)
            return moves

    _report(name, run(work()), as_json=as_json, waited=not no_wait)


def replicas(
    name: _Topic,
    count: Annotated[int, typer.Argument(metavar="COUNT", help="The new replication factor.", min=1)],
    throttle: Throttle = None,
    yes: Yes = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change a topic's replication factor. Brokers are chosen by racks and load.

    $ ottla topics replicas orders 3
    """
    rate = rate_of(throttle)

    async def work() -> list[Move]:
        from ottla_client.rebalance import CannotPlace, plan
        from ottla_client.rebalance_layout import read_layout

        async with admin(bootstrap) as client:
            await describe_topic(client, name)
            layout = await read_layout(client)
            try:
                moves = await asyncio.to_thread(
                    plan, layout.planned(), layout.partitions, replication={name: count}, balance=False
                )
            except CannotPlace as reason:
                raise Failure(str(reason)) from None
            moves = [each for each in moves if each.topic == name]
            await _carry_out(client, moves, yes=yes, wait=not no_wait, throttle=rate, quiet=as_json)
            return moves

    _report(name, run(work()), as_json=as_json, waited=not no_wait)


async def _carry_out(
    client: Admin, moves: Sequence[Move], *, yes: bool, wait: bool, throttle: int | None, quiet: bool
) -> None:
    from ottla_cli.move_progress import carry_out, plan_table, request

    if not moves:
        return
    if not quiet:
        show(plan_table(moves))
    copied = show_size(sum(each.copied for each in moves))
    confirm(f"Move {plural(len(moves), 'partition')} ({copied} to copy)?", yes=yes)
    await (carry_out if wait else request)(client, moves, throttle)


def _report(name: str, moves: Sequence[Move], *, as_json: bool, waited: bool) -> None:
    if as_json:
        from ottla_cli.move_progress import as_json as moves_as_json

        print_json({"name": name, "moves": moves_as_json(moves), "complete": waited})
    elif not moves:
        say(f"Topic {name} is there already.")
    elif waited:
        say(f"Topic {name} has moved.")
