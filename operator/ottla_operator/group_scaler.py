"""Scales the consumers of ConsumerGroups: observes target and lag, executes `group_scale.py`, writes events. [S]

The history of a group's lag is kept in memory only; the status keeps what the next operator needs of it (`Memory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ottla_operator.cast import GROUP, Cast, Tools
from ottla_operator.group_plan import SeenGroup
from ottla_operator.group_rate import Quiet, TooFast
from ottla_operator.group_scale import Decision, Memory, Observation, decide, remember
from ottla_operator.kube import KubeError
from ottla_operator.metrics import GROUP_REPLICAS, GROUP_REPLICAS_DESIRED, forget_scale
from ottla_operator.observe import SeenScale
from ottla_operator.plan import Claim
from ottla_operator.pod_parts import CLUSTER_LABEL
from ottla_operator.specs import GroupSpec, InvalidSpec, Meta, ScaleSpec, milliseconds
from ottla_operator.status import Condition
from ottla_operator.times import rfc3339

SCALING = "ScalingActive"
#: Lag is observed this often, so that consumers start soon after records were written.
INTERVAL_S = 5.0
_FORBIDDEN = 403
#: In selectors of brokers, etcd and the operator itself.
_OTTLAS_OWN = (f"{CLUSTER_LABEL}=", "app.kubernetes.io/name=ottla")


class Unscalable(Exception):
    """The target cannot be scaled: a reason and a sentence for the condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class GroupScaler:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        #: By uid of the resource.
        self._history: dict[str, list[Observation]] = {}
        #: The same as in the status, which the watch shows a moment later.
        self._memory: dict[str, Memory] = {}

    def forget(self, meta: Meta) -> None:
        self._history.pop(meta.uid, None)
        self._memory.pop(meta.uid, None)
        forget_scale(meta.key)

    async def step(
        self, meta: Meta, spec: GroupSpec, seen: SeenGroup, status: Mapping[str, Any] | None
    ) -> tuple[Condition | None, dict[str, Any] | None]:
        """Scale if that is due. Returns the condition and `status.scale`."""
        scale = spec.scale
        if scale is None:
            self.forget(meta)
            return None, None
        facts: dict[str, Any] = {"target": _name(scale)}
        if (last := ((status or {}).get("scale") or {}).get("lastScaleTime")) is not None:
            facts["lastScaleTime"] = last
        memory = self._memory.setdefault(meta.uid, memory_in((status or {}).get("scale")))
        try:
            target = await self._target(meta, scale)
            history = self._observed(meta, spec, scale, seen, target)
            memory = self._memory[meta.uid]
            decision = decide(scale, history, memory, self._tools.clock.wall_ms())
            memory = self._memory[meta.uid] = decision.memory
            if decision.replicas != target.wanted and await self._change(meta, scale, target, decision):
                facts["lastScaleTime"] = self._tools.now()
        except Unscalable as reason:
            self.forget(meta)
            return Condition(SCALING, False, reason.reason, reason.message), facts
        except KubeError as failed:
            return _failed(failed), facts | memory_facts(memory)
        facts |= {"replicas": target.running, "desired": decision.replicas, **memory_facts(memory)}
        if self._tools.cast.get(GROUP, meta.key) is not None:
            GROUP_REPLICAS.labels(*meta.key).set(target.running)
            GROUP_REPLICAS_DESIRED.labels(*meta.key).set(decision.replicas)
        active = decision.reason != "NoPartitions"
        count = "1 replica" if decision.replicas == 1 else f"{decision.replicas} replicas"
        message = f"{count}: {decision.message}" if active else decision.message
        return Condition(SCALING, active, decision.reason, message), facts

    async def _target(self, meta: Meta, scale: ScaleSpec) -> SeenScale:
        older = older_scaler(self._tools.cast, meta, scale)
        if older is not None:
            raise Unscalable("Conflict", f"The older ConsumerGroup {older!r} scales {_name(scale)}.")
        target = await self._tools.observer.scale(meta.namespace, scale.kind, scale.name)
        if target is None:
            where = f"in namespace {meta.namespace}"
            raise Unscalable("TargetMissing", f"There is no {scale.kind} {scale.name!r} {where}.")
        if any(label in target.selector for label in _OTTLAS_OWN):
            raise Unscalable("NotAConsumer", f"{_name(scale)} belongs to Ottla itself.")
        other = await self._tools.observer.autoscaler_of(meta.namespace, scale.kind, scale.name)
        if other is not None:
            message = (
                f"The HorizontalPodAutoscaler {other!r} scales {_name(scale)}; delete it, or spec.scale."
            )
            raise Unscalable("OtherAutoscaler", message)
        return target

    def _observed(
        self, meta: Meta, spec: GroupSpec, scale: ScaleSpec, seen: SeenGroup, target: SeenScale
    ) -> list[Observation]:
        now = observation(self._tools.clock.monotonic(), spec, seen, target.wanted)
        before = self._history.get(meta.uid, [])
        history = remember(before, now, scale.stabilization_s)
        if before and len(history) == 1:  # a gap: what happened in it is unknown
            self._memory[meta.uid] = replace(self._memory[meta.uid], quiet=None)
        self._history[meta.uid] = history
        return history

    async def _change(self, meta: Meta, scale: ScaleSpec, target: SeenScale, decision: Decision) -> bool:
        done = await self._tools.applier.scale(
            meta.namespace, scale.kind, scale.name, decision.replicas, target.version
        )
        if done:
            what = f"Scaled {_name(scale)} from {target.wanted} to {decision.replicas}: {decision.message}"
            await self._tools.applier.event(
                meta, "ScaledUp" if decision.replicas > target.wanted else "ScaledDown", what
            )
        return done


def memory_facts(memory: Memory) -> dict[str, Any]:
    """For `status.scale`."""
    facts: dict[str, Any] = {}
    if (fast := memory.too_fast) is not None:
        per_second = max(1, round(fast.per_replica))
        facts["notSustained"] = {"recordsPerSecondAndReplica": per_second, "at": rfc3339(fast.at_ms)}
    if memory.quiet is not None:
        since = rfc3339(memory.quiet.since_ms)
        facts["stabilizing"] = {"since": since, "mostRecommended": memory.quiet.most}
    return facts


def memory_in(facts: Mapping[str, Any] | None) -> Memory:
    fast, calm = (facts or {}).get("notSustained"), (facts or {}).get("stabilizing")
    return Memory(
        None if fast is None else TooFast(fast["recordsPerSecondAndReplica"], milliseconds(fast["at"])),
        None if calm is None else Quiet(milliseconds(calm["since"]), calm["mostRecommended"]),
    )


def scaled_by_owner(group: str, owner: Claim) -> Condition:
    message = f"{group} belongs to the older ConsumerGroup {owner.name!r}, which decides about its consumers."
    return Condition(SCALING, False, "Conflict", message)


def observation(at_s: float, spec: GroupSpec, seen: SeenGroup, replicas: int) -> Observation:
    """Only topics of the spec count, if it names any, and those that are assigned: offsets of a topic that the group
    read in former times would keep consumers busy for ever."""
    topics = {*spec.topics, *(tp[0] for member in seen.members for tp in member.partitions)}
    counted = [tp for tp in seen.ends if tp[0] in topics or not spec.topics]
    seconds = [seen.seconds[tp] for tp in counted if tp in seen.seconds]
    return Observation(
        at_s,
        replicas,
        sum(map(seen.lag_of, counted)),
        max(seconds, default=None),
        sum(seen.ends[tp] for tp in counted),
        len(counted),
    )


def older_scaler(cast: Cast, meta: Meta, scale: ScaleSpec) -> str | None:
    """Name of the oldest other ConsumerGroup that scales the same target, if it is older."""
    others = []
    for body in cast.all(GROUP):
        other = Meta.of(body)
        if other.namespace != meta.namespace or other.uid == meta.uid or other.deleting:
            continue
        try:
            theirs = GroupSpec.of(body).scale
        except InvalidSpec:
            continue
        if theirs is not None and (theirs.kind, theirs.name) == (scale.kind, scale.name):
            others.append((other.created, other.uid, other.name))
    first = min(others, default=None)
    return first[2] if first is not None and first[:2] < (meta.created, meta.uid) else None


def _name(scale: ScaleSpec) -> str:
    return f"{scale.kind}/{scale.name}"


def _failed(failed: KubeError) -> Condition:
    if failed.code == _FORBIDDEN:
        message = (
            f"The operator may not scale: {failed}. Install the chart with operator.scaleConsumers=true."
        )
        return Condition(SCALING, False, "Forbidden", message)
    return Condition(SCALING, None, "Failed", str(failed))
