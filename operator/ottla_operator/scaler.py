"""Executes the steps of `scaling.py`: reads the placement, cordons, moves, removes brokers, writes events. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ottla_client.rebalance_pace import Layout
from ottla_core.errors import RequestError
from ottla_operator.brokers import BrokersAway
from ottla_operator.cast import TOPIC, Cast, Tools
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.scaling import EMPTY, SCALED, Step, next_step
from ottla_operator.specs import InvalidSpec, Meta, TopicSpec


class Scaler:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def step(self, meta: Meta, spec: ClusterSpec, body: Mapping[str, Any]) -> Step:
        """The next step; it is not executed yet."""
        pods = await self._tools.observer.pods_wanted(meta)
        status = body.get("status") or {}
        scaled_to = status.get("scaledTo")
        before = _condition(status)
        settled = pods == spec.brokers == scaled_to and before.get("status") == "True"
        was_empty = before.get("reason") == EMPTY and before.get("observedGeneration") == meta.generation
        layout = None if settled or pods is None else await self._layout(meta)
        # Planning takes seconds with tens of thousands of partitions.
        return await asyncio.to_thread(
            next_step, spec.brokers, pods, scaled_to, layout, spread=spec.spread, was_empty=was_empty
        )

    async def _layout(self, meta: Meta) -> Layout | None:
        try:
            found: Layout = await self._tools.links.ask(*meta.key, lambda brokers: brokers.layout())
        except (BrokersAway, RequestError):
            return None
        return with_pinned(found, pinned_partitions(self._tools.cast, meta.key))

    async def execute(self, meta: Meta, body: Mapping[str, Any], step: Step) -> None:
        """Everything but the number of pods. A refusal or a missing answer waits for the next reconciliation."""
        if step.cordon or step.uncordon or step.moves or step.unregister:
            try:
                await self._tools.links.ask(*meta.key, lambda brokers: brokers.scale(step))
            except (BrokersAway, RequestError) as failed:
                await self._tools.applier.event(meta, "ScalingFailed", str(failed), warning=True)
                return
        before, now = _condition(body.get("status") or {}), step.condition
        if before and before.get("reason") != now.reason:
            await self._tools.applier.event(meta, now.reason, now.message, warning=now.reason == "Refused")
        for broker in step.unregister:
            await self._tools.applier.event(meta, "BrokerRemoved", f"Broker {broker} left the cluster.")


def pinned_partitions(cast: Cast, cluster: tuple[str, str]) -> set[tuple[str, int]]:
    """Partitions whose placement a Topic declares. Its other partitions are free to move."""
    found: set[tuple[str, int]] = set()
    for key in cast.of_cluster(TOPIC, *cluster):
        body = cast.get(TOPIC, key) or {}
        try:
            spec = TopicSpec.of(body)
        except (InvalidSpec, KeyError):
            continue
        owner = cast.owner(key[0], spec)
        if owner is None or owner.uid != Meta.of(body).uid:
            continue  # not in force: an older resource names the topic, or the Cluster does not allow this one
        found.update((spec.topic, partition) for partition in spec.assignment)
    return found


def with_pinned(layout: Layout, pinned: Collection[tuple[str, int]]) -> Layout:
    partitions = tuple(
        replace(each, pinned=(each.topic, each.partition) in pinned) for each in layout.partitions
    )
    return replace(layout, partitions=partitions)


def _condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((row for row in status.get("conditions") or () if row.get("type") == SCALED), {})
