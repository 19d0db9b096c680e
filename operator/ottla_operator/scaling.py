"""How a Cluster gets more or fewer brokers: one step, from the current state only. [P]

`clusters.py` calls `next_step` repeatedly, executes the step and stores `scaled_to` in the status. It is the number of
brokers that the replicas are laid out for, and all that has to be remembered: an operator that restarts continues.

Fewer brokers: cordon the last ones, move their replicas to the others, and when they are empty lower the number of
pods; then remove the stopped brokers from the cluster's record. A pod is never removed while its broker has replicas,
or could get one. If the remaining brokers cannot hold the replicas, nothing changes, and the reason is reported.

More brokers: start the pods, wait until the brokers are online, and move a fair share of replicas to them (policy
Spread). Raising the number again while brokers are drained ends the drain: they count as new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla_client.rebalance import CannotPlace, Move, plan
from ottla_client.rebalance_pace import Layout, Ongoing, next_moves
from ottla_operator.status import Condition

SCALED = "Scaled"
#: Reason of the condition when the leaving brokers have no replicas.
EMPTY = "Drained"


@dataclass(frozen=True, slots=True)
class Step:
    #: Pods that the StatefulSet should have.
    pods: int
    condition: Condition
    #: For `status.scaledTo`; None: unknown.
    scaled_to: int | None = None
    cordon: tuple[int, ...] = ()
    uncordon: tuple[int, ...] = ()
    moves: tuple[Move, ...] = ()
    unregister: tuple[int, ...] = ()


def next_step(
    wanted: int,
    pods: int | None,
    scaled_to: int | None,
    layout: Layout | None,
    *,
    spread: bool,
    was_empty: bool = False,
) -> Step:
    """`pods` is the StatefulSet's number now, None before its creation; `layout` is None while no broker answers.

    `was_empty`: the previous step already found the leaving brokers empty. One answer is not enough, because a
    broker may answer from metadata that is a moment old.
    """
    if pods is not None and pods > wanted:
        return _shrink(wanted, pods, scaled_to, layout, was_empty=was_empty)
    removed = [] if layout is None else [each.id for each in layout.brokers if each.id >= wanted]
    if layout is None or not removed:
        return _grow(wanted, scaled_to, layout, spread=spread)
    why = f"Brokers {', '.join(map(str, removed))} are stopping, and then leave the cluster's record."
    stopped = [each for each in removed if each not in layout.online]
    holding = [each for each in stopped if layout.held_by(each)]
    if holding:
        why = f"Broker {holding[0]} is stopped and still has replicas: raise the number of brokers again, or move them."
    empty = tuple(each for each in stopped if each not in holding)
    laid_out_for = None if scaled_to is None else min(scaled_to, wanted)
    return Step(wanted, _pending("Removing", why), laid_out_for, unregister=empty)


def _shrink(wanted: int, pods: int, scaled_to: int | None, layout: Layout | None, *, was_empty: bool) -> Step:
    if layout is None:
        why = "No broker answers, so it is unknown which replicas the leaving brokers have."
        return Step(pods, _pending("Waiting", why), scaled_to)
    leaving = [each for each in layout.brokers if each.id >= wanted]
    try:
        moves = plan(layout.planned([each.id for each in leaving]), layout.partitions, balance=False)
    except CannotPlace as refused:
        why = f"Cannot remove brokers {wanted} to {pods - 1}: {refused} No broker was removed."
        return Step(pods, _pending("Refused", why), scaled_to)
    names = ", ".join(str(each.id) for each in leaving)
    open_ = tuple(each.id for each in leaving if not each.cordoned)
    left = sum(layout.held_by(each.id) for each in leaving)
    if not open_ and not left:
        done = f"Brokers {names} have no replicas; removing their pods." if leaving else "Removing pods."
        return Step(wanted if was_empty else pods, _pending(EMPTY, done), wanted)
    why = f"{left} replicas are still to move from brokers {names}.{_progress(layout.moving)}"
    return Step(
        pods,
        _pending("Draining", why),
        wanted,
        cordon=open_,
        moves=tuple(next_moves(moves, layout.moving)),
    )


def _grow(wanted: int, scaled_to: int | None, layout: Layout | None, *, spread: bool) -> Step:
    settled = Condition(SCALED, True, "AsSpecified", f"The cluster has {wanted} brokers.")
    if scaled_to is None or scaled_to >= wanted:
        return Step(wanted, settled, wanted)
    new = range(scaled_to, wanted)
    names = ", ".join(map(str, new))
    if layout is None or not layout.online.issuperset(new):
        return Step(wanted, _pending("Starting", f"Waiting for the new brokers {names}."), scaled_to)
    cordoned = tuple(each.id for each in layout.brokers if each.id in new and each.cordoned)
    if cordoned:
        why = f"The new brokers {names} may receive replicas."
        return Step(wanted, _pending("Starting", why), scaled_to, uncordon=cordoned)
    if not spread:
        return Step(wanted, settled, wanted)
    try:
        moves = plan(layout.planned(), layout.partitions)
    except CannotPlace as refused:
        return Step(wanted, _pending("Refused", str(refused)), scaled_to)
    if not moves and not layout.moving:
        return Step(wanted, settled, wanted)
    why = f"{len(moves)} partitions are still to move onto brokers {names}.{_progress(layout.moving)}"
    return Step(wanted, _pending("Spreading", why), scaled_to, moves=tuple(next_moves(moves, layout.moving)))


def _pending(reason: str, message: str) -> Condition:
    return Condition(SCALED, False, reason, message)


def _progress(moving: Mapping[tuple[str, int], Ongoing]) -> str:
    if not moving:
        return ""
    copied, total = sum(each.copied for each in moving.values()), sum(each.total for each in moving.values())
    return f" Moving now: {len(moving)} partitions, {copied >> 20} of {total >> 20} MiB."
