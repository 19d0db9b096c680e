"""Begins moves of partitions, and shows their progress until they are complete. [A]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ottla_cli.cluster_rebalance import carry_out as paced
from ottla_cli.failure import Failure
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import note, table
from ottla_cli.tables import Table
from ottla_client import Admin, move_throttle
from ottla_client.cluster_admin import Reassignment
from ottla_client.errors import RequestError
from ottla_client.rebalance import Move
from ottla_client.rebalance_pace import COPIES_PER_BROKER
from ottla_client.record import TopicPartition
from ottla_core.real.clock import RealClock

#: Between two looks at the moves: each asks all brokers concerned for the sizes of their logs.
_EVERY_S = 1.0
#: Rows of a table; --json has all of them.
_SHOWN = 20


def plan_table(moves: Sequence[Move]) -> Table:
    rows = [
        (
            f"{m.topic}-{m.partition}",
            ",".join(map(str, m.before)),
            ",".join(map(str, m.after)),
            show_size(m.copied),
        )
        for m in moves[:_SHOWN]
    ]
    more = f"{plural(len(moves), 'partition')}" + (f", the first {_SHOWN}:" if len(moves) > _SHOWN else ":")
    return table(("partition", "from", "to", "bytes to copy#"), rows, title=f"Moves of {more}")


async def begin(client: Admin, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """Start or cancel the moves; Failure that names the refused ones."""
    refused = [each for each in await client.alter_partition_reassignments(targets) if each.error is not None]
    if refused:
        first = refused[0]
        begun = len(targets) - len(refused)
        raise Failure(
            f"{plural(len(refused), 'partition')} refused; the first is {first.tp.topic}-{first.tp.partition}: "
            f"{_message(first.error)}" + (f" {plural(begun, 'other move')} began." if begun else "")
        )


def _message(error: RequestError | None) -> str:
    return "" if error is None else error.message


async def watch(client: Admin, partitions: Collection[TopicPartition] | None = None) -> None:
    """Until these partitions (or all) have arrived, with a bar on a terminal. Ctrl-C ends the watching only."""
    from ottla_cli.bars import progress

    clock = RealClock()
    with progress(show=show_size) as bar:
        task = bar.add_task("moving", total=None)
        total = 0
        while True:
            moving = [
                each
                for each in await client.list_partition_reassignments()
                if partitions is None or each.tp in partitions
            ]
            if not moving:
                bar.update(task, total=max(total, 1), completed=max(total, 1))
                return
            left = bytes_left(moving)
            # Partitions that have arrived are no longer listed: the total is the greatest amount ever seen.
            total = max(total, left)
            bar.update(
                task,
                description=plural(len(moving), "partition"),
                total=total or None,
                completed=total - left,
            )
            await clock.sleep(_EVERY_S)


def bytes_left(moving: Iterable[Reassignment]) -> int:
    return sum(replica.bytes_left for each in moving for replica in each.progress)


async def carry_out(client: Admin, moves: Sequence[Move], *, wait: bool, throttle: int | None) -> None:
    """With a bounded number of copies at a time and a bar; or all at once, and only begun."""
    if wait:
        await paced(client, moves, COPIES_PER_BROKER, throttle)
        return
    if throttle is not None:
        await move_throttle.throttle(client, moves, throttle)
        note("The moves are throttled; run `ottla cluster throttle off` when they are done.", style="dim")
    await begin(client, {TopicPartition(each.topic, each.partition): each.after for each in moves})
    note("The moves continue in the background; `ottla cluster moves --watch` shows them.", style="dim")


def as_json(moves: Sequence[Move]) -> list[dict[str, Any]]:
    return [
        {
            "topic": m.topic,
            "partition": m.partition,
            "before": list(m.before),
            "after": list(m.after),
            "bytes_to_copy": m.copied,
        }
        for m in moves
    ]
