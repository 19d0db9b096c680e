"""Moves partitions to other brokers, redirects and cancels moves, in every world."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ottla_broker.controller.commands.move_partitions import Move, MovePartitions
from ottla_core.errors import RequestError
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from sim.loop import chance_for
from sim.spots import Spot
from sim.world import Unreachable
from sim.world_store import LATE_S_MAX

if TYPE_CHECKING:
    from sim.workload import Workload
    from sim.world import Process


@dataclass(slots=True)
class _Wish:
    """One request to a controller, which goes on with it when the client has given up."""

    targets: dict[Spot, tuple[int, ...] | None]
    controller: Process
    ended_at: float | None = None

    async def carry_out(self, clock: Clock) -> dict[Spot, RequestError | None]:
        moves = tuple(Move(each.topic, each.partition, target) for each, target in self.targets.items())
        try:
            moved = await self.controller.broker._controller.execute(MovePartitions(moves))
        finally:
            self.ended_at = clock.monotonic()
        return {spot: outcome.error for spot, outcome in zip(self.targets, moved, strict=True)}

    def may_still_happen(self, now: float) -> bool:
        """Also what a dead controller has sent may arrive."""
        if self.ended_at is None and self.controller.place.is_dead:
            self.ended_at = now
        return self.ended_at is None or now < self.ended_at + LATE_S_MAX


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
    unanswered: list[_Wish] = []
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
        wish = _Wish(targets, controller)
        try:
            errors = await world.call(controller, partial(wish.carry_out, world.clock), 3.0)
        except (RequestError, Unreachable) as error:
            errors = dict.fromkeys(targets, error)
        now = world.clock.monotonic()
        unanswered = [each for each in unanswered if each.may_still_happen(now)]
        if any(_is_open(error) for error in errors.values()):
            unanswered.append(wish)
        for spot, target in targets.items():
            # It may be carried out, or not; and an earlier one may come after this one.
            if errors[spot] is not None or any(spot in each.targets for each in unanswered):
                world.checkers.wishes.pop(spot, None)
            else:
                world.checkers.on_move(spot, states[spot], target)


def _is_open(error: RequestError | Unreachable | None) -> bool:
    """Whether the move may still be carried out."""
    return isinstance(error, Unreachable) or (error is not None and error.retriable)
