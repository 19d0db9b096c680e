"""Begins moves of partitions, and shows their progress until they are complete. [A]"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ottla_cli.failure import Failure
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import note, table
from ottla_cli.tables import Table
from ottla_client import Admin, move_throttle
from ottla_client.carry_out import Carried, CarryOut, patiently
from ottla_client.cluster_admin import Reassignment
from ottla_client.errors import RequestError
from ottla_client.rebalance import Move
from ottla_client.rebalance_layout import read_layout
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


async def carry_out(
    client: Admin, moves: Sequence[Move], throttle: int | None, *, also: Collection[TopicPartition] = ()
) -> None:
    """Request the moves and wait for them with a bar. `throttle`: bytes per second from and to each broker.

    `also`: partitions that move already, to be waited for, too.
    """
    if throttle is None:
        check_carried(await _carry_out(client, moves, also))
        return
    clock = RealClock()
    await patiently(clock, partial(move_throttle.throttle, client, moves, throttle))
    try:
        carried = await _carry_out(client, moves, also)
    except BaseException:
        note("The moves stay throttled; `ottla cluster throttle off` removes that.")
        raise
    await patiently(clock, partial(move_throttle.clear, client, moves))
    check_carried(carried)


async def check_empty(client: Admin, brokers: Collection[int]) -> None:
    """Failure if one of these drained brokers still has replicas."""
    layout = await read_layout(client)
    for broker in brokers:
        if layout.held_by(broker):
            raise Failure(
                f"Broker {broker} still has replicas: a move was cancelled, or a topic was created before "
                "the broker was cordoned. Run the command again."
            )


async def _carry_out(client: Admin, moves: Sequence[Move], also: Collection[TopicPartition]) -> Carried:
    from ottla_cli.bars import progress

    total = sum(move.copied for move in moves)
    with progress(show=show_size) as bars:
        bar = bars.add_task("bytes copied", total=total)

        def show_progress(left: int, moving: int) -> None:
            nonlocal total
            total = max(total, left)  # Others wrote meanwhile, or moves of others are waited for.
            bars.update(bar, description=plural(moving, "partition"), total=total, completed=total - left)

        try:
            carried = await CarryOut(client, RealClock(), moves, also=also, on_progress=show_progress).run()
        except asyncio.CancelledError:
            note(
                "Stopped watching; the requested moves go on by themselves. `ottla cluster moves --watch` shows them, "
                "`ottla cluster moves --cancel` moves the partitions back."
            )
            raise
    if carried.vanished:
        note(f"{plural(len(carried.vanished), 'partition')} did not move: the topics were deleted meanwhile.")
    return carried


def check_carried(carried: Carried) -> None:
    """Failure if a partition is not where it was to go."""
    texts = []
    if carried.refused:
        tp, error = next(iter(carried.refused.items()))
        texts.append(
            f"{plural(len(carried.refused), 'partition')} refused; the first is {tp}: {error.message}"
        )
    if carried.elsewhere:
        texts.append(
            f"The moves of {plural(len(carried.elsewhere), 'partition')} were cancelled or replaced by others, "
            f"the first is {carried.elsewhere[0]}."
        )
    if texts:
        raise Failure(" ".join(texts) + " The other moves are complete; run the command again for these.")


async def request(client: Admin, moves: Sequence[Move], throttle: int | None) -> None:
    """Request the moves, and do not wait."""
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
