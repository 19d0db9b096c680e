"""A Rebalance resource: propose, run what was approved, stop. One step, from the status and the placement only. [P]

    Proposed -> Running (spec.approved) -> Done
        \\-> Stopped <-/   (spec.stopped)

The proposal is stored in the status and executed exactly: a partition that was moved by another client since then is
left alone. Done and Stopped are final; a new resource is a new proposal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla_client.rebalance import CannotPlace, Move, applied, loads, plan
from ottla_client.rebalance_pace import Layout, next_moves
from ottla_operator.schemas import MOVED_MAX
from ottla_operator.specs import RebalanceSpec
from ottla_operator.status import READY, Condition, not_ready, ready

PROPOSED, RUNNING, DONE, STOPPED = "Proposed", "Running", "Done", "Stopped"


@dataclass(frozen=True, slots=True)
class Step:
    condition: Condition
    #: The status without conditions.
    facts: Mapping[str, Any]
    cordon: tuple[int, ...] = ()
    moves: tuple[Move, ...] = ()
    #: (topic, partition) of moves to cancel.
    cancel: tuple[tuple[str, int], ...] = ()


def next_step(spec: RebalanceSpec, status: Mapping[str, Any] | None, layout: Layout) -> Step:
    before = status or {}
    state = before.get("state")
    facts = {
        name: value for name, value in before.items() if name not in ("conditions", "observedGeneration")
    }
    if state in (DONE, STOPPED):
        return Step(_ended(state), facts)
    if state == RUNNING:
        return _run(spec, facts, layout)
    if spec.stopped:
        return Step(_ended(STOPPED), {**facts, "state": STOPPED})
    if state == PROPOSED and spec.approved:
        return _run(spec, {**facts, "state": RUNNING}, layout)
    return _propose(spec, facts, layout)


def _propose(spec: RebalanceSpec, facts: Mapping[str, Any], layout: Layout) -> Step:
    """Keep a proposal as long as it fits the placement, so that what is approved is what was shown."""
    moves = moves_in(facts)
    current = {(each.topic, each.partition): each.replicas for each in layout.partitions}
    if not moves or any(current.get((move.topic, move.partition)) != move.before for move in moves):
        try:
            moves = plan(layout.planned(spec.drain), layout.partitions)[:MOVED_MAX]
        except CannotPlace as refused:
            return Step(not_ready("Refused", str(refused)), {})
    if not moves:
        return Step(ready("The cluster is balanced; nothing to move.", DONE), {"state": DONE, "moveCount": 0})
    copied = sum(move.copied for move in moves)
    message = (
        f"{len(moves)} partitions to move, {copied >> 20} MiB to copy. Set spec.approved to true to start."
    )
    return Step(_pending("AwaitingApproval", message), {"state": PROPOSED, **_proposal(layout, moves)})


def _run(spec: RebalanceSpec, facts: dict[str, Any], layout: Layout) -> Step:
    moves = moves_in(facts)
    current = {(each.topic, each.partition): each.replicas for each in layout.partitions}
    ours = [move for move in moves if current.get((move.topic, move.partition)) == move.after]
    moving = [move for move in ours if (move.topic, move.partition) in layout.moving]
    if spec.stopped:
        cancel = tuple((move.topic, move.partition) for move in moving)
        facts = {**facts, "state": STOPPED, "movesDone": len(ours) - len(moving)}
        return Step(_ended(STOPPED), facts, cancel=cancel)
    pending = [move for move in moves if current.get((move.topic, move.partition)) == move.before]
    facts["movesDone"] = len(moves) - len(pending) - len(moving)
    if not pending and not moving:
        return Step(_ended(DONE), {**facts, "state": DONE})
    started = tuple(next_moves(pending, layout.moving))
    cordoned = {each.id for each in layout.brokers if each.cordoned}
    message = f"{facts['movesDone']} of {len(moves)} partitions are moved, {len(moving)} are moving."
    return Step(_pending(RUNNING, message), facts, tuple(b for b in spec.drain if b not in cordoned), started)


def _pending(reason: str, message: str) -> Condition:
    """Unknown, not False: nothing is wrong."""
    return Condition(READY, None, reason, message)


def _ended(state: str) -> Condition:
    if state == DONE:
        return ready("All moves are complete.", DONE)
    return ready("Stopped: moves that had begun were cancelled, others did not begin.", STOPPED)


def _proposal(layout: Layout, moves: Sequence[Move]) -> dict[str, Any]:
    now = loads(layout.brokers, layout.partitions)
    then = loads(layout.brokers, applied(layout.partitions, moves))
    return {
        "moveCount": len(moves),
        "movesDone": 0,
        "bytesToCopy": sum(move.copied for move in moves),
        "brokers": [
            {
                "id": broker,
                "replicas": now[broker].replicas,
                "replicasAfter": then[broker].replicas,
                "leaders": now[broker].leaders,
                "leadersAfter": then[broker].leaders,
                "bytes": now[broker].size,
                "bytesAfter": then[broker].size,
            }
            for broker in now
        ],
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "from": list(move.before),
                "to": list(move.after),
                "bytes": move.size,
            }
            for move in moves
        ],
    }


def moves_in(facts: Mapping[str, Any]) -> list[Move]:
    """The proposal of a status."""
    return [
        Move(row["topic"], row["partition"], tuple(row["from"]), tuple(row["to"]), row.get("bytes", 0))
        for row in facts.get("moves") or ()
    ]
