"""Reconciles one Rebalance: read the placement, step, act, report. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ottla_client.rebalance_pace import Layout
from ottla_core.errors import RequestError
from ottla_operator.brokers import BrokersAway
from ottla_operator.cast import CLUSTER, REBALANCE, Tools
from ottla_operator.rebalance_plan import DONE, PROPOSED, STOPPED, Step, next_step
from ottla_operator.scaler import pinned_partitions, with_pinned
from ottla_operator.specs import InvalidSpec, Meta, RebalanceSpec
from ottla_operator.status import Condition, conditions_in, kept, not_ready, reason_of

SETTLED_S = 30.0
SOON_S = 2.0


class RebalanceLook:
    def __init__(self, tools: Tools, *, settled_s: float = SETTLED_S) -> None:
        self._tools = tools
        self._settled_s = settled_s

    async def look(self, key: tuple[str, str]) -> float | None:
        body = self._tools.cast.get(REBALANCE, key)
        if body is None or Meta.of(body).deleting:
            return None  # moves that began go on; they are the brokers'
        meta = Meta.of(body)
        status = body.get("status") or {}
        if status.get("state") in (DONE, STOPPED):
            # Final, also for a spec that changed since: `kubectl wait` wants a condition of that generation.
            await self._tools.report(meta, body, conditions_in(status), kept(status))
            return None
        try:
            spec = RebalanceSpec.of(body)
        except InvalidSpec as refused:
            return await self._keep(meta, body, not_ready("InvalidSpec", str(refused)), self._settled_s)
        if meta.paused:
            return await self._keep(meta, body, not_ready("Paused", "Paused."), self._settled_s)
        place = meta.namespace, spec.cluster
        if self._tools.cast.get(CLUSTER, place) is None:
            missing = f"There is no Cluster {spec.cluster!r} in namespace {meta.namespace}."
            return await self._keep(meta, body, not_ready("NoCluster", missing), SOON_S)
        try:
            return await self._reconcile(meta, spec, body, place)
        except BrokersAway as away:
            return await self._keep(meta, body, not_ready("BrokersAway", str(away)), SOON_S)
        except RequestError as refused:
            return await self._keep(meta, body, not_ready(reason_of(refused.name), refused.message), SOON_S)

    async def _reconcile(
        self, meta: Meta, spec: RebalanceSpec, body: Mapping[str, Any], place: tuple[str, str]
    ) -> float:
        layout: Layout = await self._tools.links.ask(*place, lambda brokers: brokers.layout())
        layout = with_pinned(layout, pinned_partitions(self._tools.cast, place))
        step = await asyncio.to_thread(next_step, spec, body.get("status"), layout)
        if step.cordon or step.moves or step.cancel:
            await self._tools.links.ask(*place, lambda brokers: brokers.rebalance(step))
        await self._report(meta, body, step)
        waits = step.facts.get("state") == PROPOSED and not spec.approved
        return self._settled_s if waits else SOON_S

    async def _report(self, meta: Meta, body: Mapping[str, Any], step: Step) -> None:
        state, before = step.facts.get("state"), (body.get("status") or {}).get("state")
        await self._tools.report(meta, body, [step.condition], step.facts)
        if state != before and state is not None:
            await self._tools.applier.event(meta, state, step.condition.message)

    async def _keep(self, meta: Meta, body: Mapping[str, Any], condition: Condition, delay_s: float) -> float:
        await self._tools.report(meta, body, [condition], kept(body.get("status")))
        return delay_s
