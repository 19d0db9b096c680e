"""One look at a Topic: read, plan, act, report. And its end. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ottla_core.errors import RequestError
from ottla_operator.brokers import Brokers, BrokersAway
from ottla_operator.cast import CLUSTER, TOPIC, Tools
from ottla_operator.metrics import DRIFT
from ottla_operator.plan import (
    Plan,
    SeenTopic,
    condition_of,
    conflict,
    facts_of,
    is_drift,
    plan,
    plan_removal,
    words,
)
from ottla_operator.specs import InvalidSpec, Meta, TopicSpec
from ottla_operator.status import Condition, kept, not_ready, reason_of

#: Until the next look: when all is well (drift is found then), and when something is about to change.
SETTLED_S = 30.0
SOON_S = 3.0
_REMOVALS_MAX = 8


class TopicLook:
    def __init__(self, tools: Tools, *, settled_s: float = SETTLED_S) -> None:
        self._tools = tools
        self._settled_s = settled_s
        #: A deleted namespace takes hundreds of Topics at once, and brokers queue only so many changes.
        self._removing = asyncio.Semaphore(_REMOVALS_MAX)

    async def look(self, key: tuple[str, str]) -> float | None:
        body = self._tools.cast.get(TOPIC, key)
        if body is None or Meta.of(body).deleting:
            return None  # its end is `remove`
        meta = Meta.of(body)
        try:
            spec = TopicSpec.of(body)
        except InvalidSpec as refused:
            return await self._keep(meta, body, not_ready("InvalidSpec", str(refused)), self._settled_s)
        owner = self._tools.cast.owner(meta.namespace, spec)
        if owner is not None and owner.uid != meta.uid:
            await self._tools.report(meta, body, [conflict(spec.topic, owner)], {})
            return SOON_S
        if self._tools.cast.get(CLUSTER, (meta.namespace, spec.cluster)) is None:
            missing = f"There is no Cluster {spec.cluster!r} in namespace {meta.namespace}."
            return await self._keep(meta, body, not_ready("NoCluster", missing), SOON_S)
        try:
            return await self._reconcile(meta, spec, body)
        except BrokersAway as away:
            return await self._keep(meta, body, not_ready("BrokersAway", str(away)), SOON_S)
        except RequestError as refused:
            condition = not_ready(reason_of(refused.name), refused.message)
            return await self._keep(meta, body, condition, SOON_S if refused.retriable else self._settled_s)

    async def _reconcile(self, meta: Meta, spec: TopicSpec, body: Mapping[str, Any]) -> float:
        seen = await self._ask(meta, spec, lambda brokers: brokers.topic(spec.topic))
        found = plan(spec, seen)
        if found.refusal is not None or meta.paused:
            condition = found.refusal or _paused(found, seen)
            await self._tools.report(meta, body, [condition], facts_of(seen) if seen else {})
            return self._settled_s
        if found.actions:
            await self._act(meta, spec, body, found)
            seen = await self._ask(meta, spec, lambda brokers: brokers.topic(spec.topic))
        if seen is None:
            pending = not_ready("Pending", f"{spec.topic} was created and is not to be seen yet.")
            return await self._keep(meta, body, pending, SOON_S)
        condition = condition_of(seen)
        facts = facts_of(seen)
        await self._tools.report(meta, body, [condition], facts)
        whole = facts["inSync"] == f"{len(seen.partitions)}/{len(seen.partitions)}"
        return self._settled_s if condition.holds and whole else SOON_S

    async def _act(self, meta: Meta, spec: TopicSpec, body: Mapping[str, Any], found: Plan) -> None:
        drift = is_drift(meta, body.get("status"), found.actions)
        for action in found.actions:
            await self._ask(meta, spec, lambda brokers, action=action: brokers.do(action))
            if drift:
                DRIFT.labels(TOPIC).inc()
            await self._tools.applier.event(meta, "DriftRepaired" if drift else "Applied", words(action))

    async def _ask(self, meta: Meta, spec: TopicSpec, question: Any) -> Any:
        return await self._tools.links.ask(meta.namespace, spec.cluster, question)

    async def _keep(self, meta: Meta, body: Mapping[str, Any], condition: Condition, delay_s: float) -> float:
        """Report, and leave what was known in place."""
        await self._tools.report(meta, body, [condition], kept(body.get("status")))
        return delay_s

    # ------------------------------------------------------------------ the end

    async def remove(self, body: Mapping[str, Any]) -> None:
        """The resource is going. Raises what is worth another try; returns when it may go.

        Who is not the owner takes nothing along, and without a Cluster there is nothing to take: a namespace that
        is being deleted must never wait for brokers that went first.
        """
        meta = Meta.of(body)
        try:
            spec = TopicSpec.of(body)
        except InvalidSpec:
            return
        owner = self._tools.cast.owner(meta.namespace, spec)
        mine = owner is None or owner.uid == meta.uid
        if not mine or spec.retain or meta.paused or not await self._cluster_stays(meta, spec):
            return

        async def finish(brokers: Brokers) -> None:
            for action in plan_removal(spec, await brokers.topic(spec.topic)).actions:
                await brokers.do(action)

        async with self._removing:
            await self._ask(meta, spec, finish)

    async def _cluster_stays(self, meta: Meta, spec: TopicSpec) -> bool:
        """Asked for anew each time: in a dying namespace the Cluster may have gone a moment ago."""
        cluster = await self._tools.observer.resource(CLUSTER, meta.namespace, spec.cluster)
        return cluster is not None and not Meta.of(cluster).deleting


def _paused(found: Plan, seen: SeenTopic | None) -> Condition:
    if found.actions:
        todo = " ".join(words(action) for action in found.actions)
        return not_ready("Paused", f"Paused; left undone: {todo}")
    return condition_of(seen) if seen is not None else not_ready("Paused", "Paused.")
