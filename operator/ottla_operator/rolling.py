"""Which broker may be restarted now. [P]

Given the pods, the revision that they should have, and every partition's replicas: at most one name, or the reason
to wait. Called again and again by `clusters.py`; it keeps nothing, so an operator that dies goes on where it was.

Properties, given that nobody else kills pods:
 1. At most one broker is down because of us.
 2. No partition that was at or above its min.insync.replicas goes below because of us; those with no replica to
    spare (replicas <= min ISR) are restarted only while all of theirs are in sync.
 3. A pod that is out of date and not ready goes first: the new version may be its cure. But a probe fails under load
    as well: as long as its broker is one of the cluster's, 2 counts.
 4. The controller goes last, so that its duties move once and not at every step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pod:
    broker: int
    name: str
    uid: str
    ready: bool
    #: Runs what the StatefulSet asks for.
    current: bool
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Hosted:
    """One partition: who holds it, who is in sync, how many must be."""

    name: str
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int


@dataclass(frozen=True, slots=True)
class Restart:
    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    why: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Every pod runs what the spec asks for."""


Step = Restart | Wait | Finished


def next_step(
    pods: Sequence[Pod],
    brokers: int,
    partitions: Sequence[Hosted] | None,
    controller: int | None,
    alive: Collection[int] = (),
) -> Step:
    """`partitions` is None while no broker answers; `alive` are the brokers that the cluster counts as its own."""
    outdated = sorted((pod for pod in pods if not pod.current), key=lambda p: p.broker)
    if not outdated:
        return Finished()
    going = [pod.name for pod in pods if pod.deleting]
    if going:
        return Wait(f"{going[0]} is stopping.")
    broken = [pod for pod in outdated if not pod.ready]
    needed = {p.broker: _blocking(p.broker, partitions or ()) for p in broken if p.broker in alive}
    for pod in broken:
        if needed.get(pod.broker) is None:
            return Restart(pod, "It is out of date and not ready.")
    if broken:
        return Wait(f"{broken[0].name} is not ready, but needed: {needed[broken[0].broker]}")
    if len(pods) < brokers:
        return Wait(f"{brokers - len(pods)} pods are missing.")
    unready = [pod.name for pod in pods if not pod.ready]
    if unready:
        return Wait(f"{unready[0]} is not ready yet.")
    if partitions is None:
        return Wait("No broker answers, so nobody knows what is in sync.")
    blocked = []
    for pod in [pod for pod in outdated if pod.broker != controller] or outdated:
        why_not = _blocking(pod.broker, partitions)
        if why_not is None:
            return Restart(pod, "It is out of date, and no partition needs it right now.")
        blocked.append(f"{pod.name} cannot be restarted yet: {why_not}")
    return Wait(blocked[0])


def _blocking(broker: int, partitions: Sequence[Hosted]) -> str | None:
    for each in partitions:
        if broker not in each.isr:
            continue
        left = len(each.isr) - 1
        if left >= each.min_isr:
            continue
        whole = len(each.replicas) <= each.min_isr and set(each.replicas) <= set(each.isr)
        if not whole:
            return f"{each.name} would have {left} in sync, below its {each.min_isr}."
    return None
