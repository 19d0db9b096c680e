"""Moves partitions to other brokers, redirects and cancels moves, in every world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla_broker.controller.commands.move_partitions import Move, MovePartitions
from ottla_core.errors import RequestError
from ottla_core.ports.chance import Chance
from sim.loop import chance_for
from sim.world import Unreachable

if TYPE_CHECKING:
    from sim.workload import Workload


def _some(brokers: list[int], chance: Chance) -> tuple[int, ...]:
    """Two or more of them, in any order."""
    count = 2 + chance.below(len(brokers) - 1)
    return tuple(brokers.pop(chance.below(len(brokers))) for _ in range(count))


async def move(workload: Workload) -> None:
    """One wish after another, whatever becomes of each."""
    world = workload.world
    chance = chance_for(world.seed, "moves")
    while not workload.is_settling:
        await world.clock.sleep(0.3 + chance.fraction() * 1.5)
        controllers = [p for p in world.serving if p.broker._controller.is_active]
        states = world.states()
        if not controllers or not states:
            continue
        controller = controllers[chance.below(len(controllers))]
        spot = list(states)[chance.below(len(states))]
        target: tuple[int, ...] | None = None
        if chance.below(4):
            target = _some(sorted(world.machines), chance)
        elif moving := [each for each, state in states.items() if state.is_moving]:
            spot = moving[0]  # Else hardly any cancellation would come in time.
        world.note(f"move {spot.tp} to {target}")
        before = states[spot]
        try:
            (moved,) = await world.call(
                controller,
                lambda c=controller, s=spot, t=target: c.broker._controller.execute(  # type: ignore[misc]
                    MovePartitions((Move(s.topic, s.partition, t),))
                ),
                3.0,
            )
            if moved.error is not None:
                raise moved.error
        except (RequestError, Unreachable):
            world.checkers.wishes.pop(spot, None)  # It may be carried out, or not.
        else:
            world.checkers.on_move(spot, before, target)
