"""`ottla cluster rebalance`: plan moves, show them, carry them out with progress. [A]

The plan is `ottla_client.rebalance`. The brokers carry out the moves by themselves, so this command may end at any
time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from ottla_cli.connecting import admin, run
from ottla_cli.failure import Failure
from ottla_cli.move_progress import carry_out, check_empty
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import confirm, note, print_json, say, show, table
from ottla_client.rebalance import Broker, CannotPlace, Load, Move, applied, loads, plan
from ottla_client.rebalance_layout import read_layout
from ottla_client.rebalance_pace import Layout
from ottla_core.ids import TopicPartition

#: Rows of the table of moves; --json has all.
_ROWS_MAX = 40


def rebalance(
    bootstrap: str,
    drain: Sequence[int],
    *,
    throttle: int | None,
    dry_run: bool,
    cancel: bool,
    yes: bool,
    as_json: bool,
) -> None:
    if cancel:
        run(_cancel(bootstrap, yes=yes))
    else:
        run(_work(bootstrap, drain, throttle, dry_run=dry_run, yes=yes, as_json=as_json))


async def _work(
    bootstrap: str,
    drain: Sequence[int],
    throttle: int | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    async with admin(bootstrap) as client:
        layout = await read_layout(client)
        brokers = _with_leaving(layout, drain)
        try:
            moves = await asyncio.to_thread(plan, brokers, layout.partitions)
        except CannotPlace as refused:
            raise Failure(f"{refused} Nothing was changed.") from None
        before, after = loads(brokers, layout.partitions), loads(brokers, applied(layout.partitions, moves))
        if as_json:
            print_json(document(before, after, moves))
        else:
            show_plan(brokers, before, after, moves)
        if dry_run:
            return
        if moves:
            copied = show_size(sum(move.copied for move in moves))
            confirm(f"Move {plural(len(moves), 'partition')}, copying {copied}?", yes=yes)
        for broker in drain:
            # Otherwise a topic that is created meanwhile may get a replica there.
            await client.cordon_broker(broker)
        if moves or layout.moving:
            await carry_out(client, moves, throttle, also={TopicPartition(*tp) for tp in layout.moving})
            copied = show_size(sum(move.copied for move in moves))
            note(f"Moved {plural(len(moves), 'partition')}, {copied} copied.")
        if drain:
            await check_empty(client, drain)
            note("The drained brokers have no replicas, and are cordoned: they get no new ones.")


def _with_leaving(layout: Layout, drain: Sequence[int]) -> list[Broker]:
    known = {each.id: each for each in layout.brokers}
    for broker in drain:
        if broker not in known:
            there = ", ".join(map(str, sorted(known)))
            raise Failure(f"There is no broker {broker}; the cluster has {there}.", exit_code=2)
    return layout.planned(drain)


async def _cancel(bootstrap: str, *, yes: bool) -> None:
    async with admin(bootstrap) as client:
        moving = [each.tp for each in await client.list_partition_reassignments()]
        if not moving:
            say("No partition is moving.")
            return
        confirm(f"Cancel the moves of {plural(len(moving), 'partition')}?", yes=yes)
        outcomes = await client.alter_partition_reassignments(dict.fromkeys(moving, None))
        errors = [each.error for each in outcomes if each.error is not None]
        say(
            f"Cancelled {plural(len(moving) - len(errors), 'move')}; the partitions return to their former brokers."
        )
        if errors:
            note(f"{plural(len(errors), 'move')} ended before: {errors[0].message}")


# ------------------------------------------------------------------ output


def document(before: dict[int, Load], after: dict[int, Load], moves: Sequence[Move]) -> dict[str, Any]:
    def load(found: Load) -> dict[str, int]:
        return {"replicas": found.replicas, "leaders": found.leaders, "bytes": found.size}

    return {
        "brokers": [
            {"id": broker, "before": load(before.get(broker, Load())), "after": load(after[broker])}
            for broker in after
        ],
        "bytes_to_copy": sum(move.copied for move in moves),
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "before": list(move.before),
                "after": list(move.after),
                "bytes_to_copy": move.copied,
            }
            for move in moves
        ],
    }


def show_plan(
    brokers: Sequence[Broker], before: dict[int, Load], after: dict[int, Load], moves: Sequence[Move]
) -> None:
    states = {each.id: "drain" if each.leaving else "cordoned" if each.cordoned else "" for each in brokers}
    rows = []
    for broker in sorted({*before, *after}):
        was, now = before.get(broker, Load()), after.get(broker, Load())
        rows.append(
            (
                broker,
                _change(str(was.replicas), str(now.replicas)),
                _change(str(was.leaders), str(now.leaders)),
                _change(show_size(was.size), show_size(now.size)),
                states.get(broker, "offline"),
            )
        )
    show(table(("broker#", "replicas", "leaders", "bytes", ""), rows))
    sys.stdout.write("\n")
    if not moves:
        say("Nothing to move: the cluster is balanced.")
        return
    shown = [
        (
            f"{move.topic}-{move.partition}",
            move.before,
            move.after,
            show_size(move.copied) if move.added else "-",
        )
        for move in moves[:_ROWS_MAX]
    ]
    show(table(("partition", "replicas", "new replicas", "to copy#"), shown))
    if len(moves) > _ROWS_MAX:
        note(f"… and {plural(len(moves) - _ROWS_MAX, 'more move')}; --dry-run --json lists all.")
    sys.stdout.write("\n")


def _change(was: str, now: str) -> str:
    return was if was == now else f"{was} → {now}"
