"""Reconciles one Topic: read, plan, act, report. After its deletion, deletes the topic on the brokers. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ottla_core.errors import RequestError
from ottla_operator.brokers import Brokers, BrokersAway
from ottla_operator.cast import TOPIC, Tools
from ottla_operator.metrics import DRIFT
from ottla_operator.plan import (
    CreateTopic,
    Plan,
    SeenTopic,
    condition_of,
    conflict,
    facts_of,
    is_drift,
    loss,
    plan,
    plan_removal,
    words,
)
from ottla_operator.specs import InvalidSpec, Meta, TopicSpec
from ottla_operator.status import Condition, kept, not_ready, reason_of

#: Seconds until the next reconciliation: if the topic matches its spec (finds drift), and if it will change soon.
SETTLED_S = 30.0
SOON_S = 3.0
_REMOVALS_MAX = 8
#: Facts that are meaningless without brokers.
_OF_BROKERS = ("inSync", "partitions")


class TopicLook:
    def __init__(self, tools: Tools, *, settled_s: float = SETTLED_S) -> None:
        self._tools = tools
        self._settled_s = settled_s
        #: Resource uid -> the topic id last seen. The status may lag behind, or never be written.
        self._seen: dict[str, str] = {}
        #: Resource uid -> id of the topic that replaced a lost one, to warn once.
        self._lost: dict[str, str] = {}
        #: Deleting a namespace deletes hundreds of Topics at once, and brokers queue a limited number of changes.
        self._removing = asyncio.Semaphore(_REMOVALS_MAX)

    async def look(self, key: tuple[str, str]) -> float | None:
        body = self._tools.cast.get(TOPIC, key)
        if body is None or Meta.of(body).deleting:
            return None  # `remove` handles deletions
        meta = Meta.of(body)
        try:
            spec = TopicSpec.of(body)
        except InvalidSpec as refused:
            return await self._keep(meta, body, not_ready("InvalidSpec", str(refused)), self._settled_s)
        refusal = self._tools.cast.refusal(meta, spec.cluster)
        if refusal is not None:
            known = {
                name: value for name, value in kept(body.get("status")).items() if name not in _OF_BROKERS
            }
            await self._tools.report(meta, body, [refusal], known)
            return SOON_S
        owner = self._tools.cast.owner(meta.namespace, spec)
        if owner is not None and owner.uid != meta.uid:
            await self._tools.report(meta, body, [conflict(spec.topic, owner)], {})
            return SOON_S
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
            condition = found.refusal or _paused(spec, found, seen)
            await self._tools.report(meta, body, [condition], facts_of(seen) if seen else {})
            return self._settled_s
        if found.actions:
            await self._act(meta, spec, body, found)
            seen = await self._ask(meta, spec, lambda brokers: brokers.topic(spec.topic))
        if seen is None:
            pending = not_ready(
                "Pending", f"{spec.topic} was created, but is not in the brokers' metadata yet."
            )
            return await self._keep(meta, body, pending, SOON_S)
        self._seen[meta.uid] = seen.topic_id
        await self._warn_of_loss(meta, body, found, seen)
        condition = condition_of(spec, seen)
        facts = facts_of(seen)
        await self._tools.report(meta, body, [condition], facts)
        whole = facts["inSync"] == f"{len(seen.partitions)}/{len(seen.partitions)}"
        return self._settled_s if condition.holds and whole else SOON_S

    async def _act(self, meta: Meta, spec: TopicSpec, body: Mapping[str, Any], found: Plan) -> None:
        drift = is_drift(meta, body.get("status"), found.actions)
        # A topic that is created again has lost its records, so this is not reported as a repair.
        created = any(isinstance(action, CreateTopic) for action in found.actions)
        for action in found.actions:
            await self._ask(meta, spec, lambda brokers, action=action: brokers.do(action))
            if drift:
                DRIFT.labels(TOPIC).inc()
            reason = "DriftRepaired" if drift and not created else "Applied"
            await self._tools.applier.event(meta, reason, words(action))

    async def _warn_of_loss(self, meta: Meta, body: Mapping[str, Any], found: Plan, seen: SeenTopic) -> None:
        """Warn once per lost topic: the watch may show a status older than the operator's last write."""
        created = any(isinstance(action, CreateTopic) for action in found.actions)
        lost = loss(body.get("status"), seen, created=created)
        if lost is not None and self._lost.get(meta.uid) != seen.topic_id:
            self._lost[meta.uid] = seen.topic_id
            await self._tools.applier.event(meta, "RecordsLost", lost, warning=True)

    async def _ask(self, meta: Meta, spec: TopicSpec, question: Any) -> Any:
        return await self._tools.links.ask(*spec.cluster.place(meta.namespace), question)

    async def _keep(self, meta: Meta, body: Mapping[str, Any], condition: Condition, delay_s: float) -> float:
        """Report the condition and keep the facts of the previous status."""
        await self._tools.report(meta, body, [condition], kept(body.get("status")))
        return delay_s

    # ------------------------------------------------------------------ after the resource was deleted

    async def remove(self, body: Mapping[str, Any]) -> None:
        """Delete the topic of a deleted resource. Raises errors that are worth a retry; returns when nothing is left.

        The topic stays if another resource names it, or if its id differs: a topic that was created again since then
        does not belong to this resource. Without a Cluster there is nothing to delete.
        """
        meta = Meta.of(body)
        topic_id = self._seen.pop(meta.uid, None) or (body.get("status") or {}).get("topicId")
        self._lost.pop(meta.uid, None)
        try:
            spec = TopicSpec.of(body)
        except InvalidSpec:
            return
        owner = self._tools.cast.owner(meta.namespace, spec)
        if owner is not None and owner.uid != meta.uid:
            return
        if (
            spec.retain
            or meta.paused
            or not topic_id
            or not await self._tools.cluster_stays(meta, spec.cluster)
        ):
            return

        async def finish(brokers: Brokers) -> None:
            for action in plan_removal(spec, await brokers.topic(spec.topic), topic_id).actions:
                await brokers.do(action)

        try:
            async with self._removing:
                await self._ask(meta, spec, finish)
        except BaseException:
            self._seen[meta.uid] = topic_id  # for the next attempt
            raise


def _paused(spec: TopicSpec, found: Plan, seen: SeenTopic | None) -> Condition:
    if found.actions:
        todo = " ".join(words(action) for action in found.actions)
        return not_ready("Paused", f"Paused; pending: {todo}")
    return condition_of(spec, seen) if seen is not None else not_ready("Paused", "Paused.")
