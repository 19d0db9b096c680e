"""Moves partitions to other brokers, redirects and cancels moves, in every world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla_broker.controller.commands.move_partitions import Move, MovePartitions
from ottla_core.errors import RequestError
from ottla_core.ports.chance import Chance
from sim.loop import chance_for
from sim.spots import Spot
from sim.world import Unreachable

if TYPE_CHECKING:
    from sim.workload import Workload


def _some(brokers: list[int], chance: Chance) -> tuple[int, ...]:
    """Two or more of them, in any order."""
    count = 2 + chance.below(len(brokers) - 1)
    return tuple(brokers.pop(chance.below(len(brokers))) for _ in range(count))


def _several(spots: list[Spot], chance: Chance) -> list[Spot]:
    """One, two or three of them."""
    count = min(len(spots), (1, 1, 2, 3)[chance.below(4)])
    return [spots.pop(chance.below(len(spots))) for _ in range(count)]


async def move(workload: Workload) -> None:
    """One request after another, some for several partitions at once, whatever becomes of each."""
    world = workload.world
    chance = chance_for(world.seed, "moves")
    while not workload.is_settling:
        await world.clock.sleep(0.3 + chance.fraction() * 1.5)
        controllers = [p for p in world.serving if p.broker._controller.is_active]
        states = world.states()
        if not controllers or not states:
            continue
        controller = controllers[chance.below(len(controllers))]
        spots = _several(list(states), chance)
        cancels = chance.below(4) == 0
        if cancels and (
            moving := [each for each, state in states.items() if state.is_moving or state.planned]
        ):
            spots = moving[:1]  # Else hardly any cancellation would come in time.
        targets = {each: None if cancels else _some(sorted(world.machines), chance) for each in spots}
        for spot, target in targets.items():
            world.note(f"move {spot.tp} to {target}")
        moves = tuple(Move(each.topic, each.partition, target) for each, target in targets.items())
        try:
            moved = await world.call(
                controller,
                lambda c=controller, m=moves: c.broker._controller.execute(MovePartitions(m)),  # type: ignore[misc]
                3.0,
            )
        except (RequestError, Unreachable):
            for spot in targets:
                world.checkers.wishes.pop(spot, None)  # It may be carried out, or not.
            continue
        for (spot, target), outcome in zip(targets.items(), moved, strict=True):
            if outcome.error is not None:
                world.checkers.wishes.pop(spot, None)
            else:
                world.checkers.on_move(spot, states[spot], target)
