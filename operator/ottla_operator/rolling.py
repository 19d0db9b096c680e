"""Which broker may be restarted now. [P]

Given the pods, the revision that they should have, and every partition's replicas: at most one pod, or the reason
to wait. `clusters.py` calls it repeatedly. It keeps no state, so a restarted operator continues where it stopped.

Properties, if only the operator deletes pods:
 1. The operator takes down at most one broker at a time.
 2. A restart takes no partition below its min.insync.replicas. If a partition has no spare replica
    (replicas <= min ISR), its brokers are restarted only while all of its replicas are in sync.
 3. An outdated pod that is not ready is restarted first: the new version may fix it. But a readiness probe also fails
    under load: while the cluster counts the broker as live, property 2 applies.
 4. The controller is restarted last, so that the controller moves once and not at every step.
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
    #: Runs the StatefulSet's current revision.
    current: bool
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Hosted:
    """One partition: its replicas, its ISR, its min.insync.replicas."""

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
    """Every pod runs the current revision."""


Step = Restart | Wait | Finished


def next_step(
    pods: Sequence[Pod],
    brokers: int,
    partitions: Sequence[Hosted] | None,
    controller: int | None,
    alive: Collection[int] = (),
) -> Step:
    """`partitions` is None while no broker answers; `alive` are the brokers that the cluster counts as live."""
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
        return Wait(f"{broken[0].name} is not ready, but its replicas are needed: {needed[broken[0].broker]}")
    if len(pods) < brokers:
        return Wait(f"{brokers - len(pods)} pods are missing.")
    unready = [pod.name for pod in pods if not pod.ready]
    if unready:
        return Wait(f"{unready[0]} is not ready yet.")
    if partitions is None:
        return Wait("No broker answers, so the in-sync replicas are unknown.")
    blocked = []
    for pod in [pod for pod in outdated if pod.broker != controller] or outdated:
        why_not = _blocking(pod.broker, partitions)
        if why_not is None:
            return Restart(pod, "It is out of date, and all partitions have enough other in-sync replicas.")
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
            return f"{each.name} would have {left} in-sync replicas, below its min.insync.replicas of {each.min_isr}."
    return None
