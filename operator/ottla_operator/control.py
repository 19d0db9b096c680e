"""The operator itself: makes its parts, holds the schedule, sends each resource to the look of its kind. [S]

`handlers.py` tells it what the watches show; nothing else calls it. No decision is made here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ottla_core.ports.clock import Clock
from ottla_operator.apply import Applier
from ottla_operator.brokers import Links
from ottla_operator.cast import CLUSTER, GROUP, TOPIC, Cast, Tools
from ottla_operator.clusters import ClusterLook
from ottla_operator.groups import GroupLook
from ottla_operator.kube import Kube, KubeError
from ottla_operator.metrics import RECONCILE_SECONDS, RECONCILES, RESOURCES, forget_group
from ottla_operator.observe import Observer
from ottla_operator.pod_parts import CLUSTER_LABEL
from ottla_operator.resources import GRPC_PORT, Names
from ottla_operator.schedule import Key, Schedule
from ottla_operator.settings import Settings
from ottla_operator.specs import PAUSED, Meta
from ottla_operator.status import is_ready, kept, not_ready
from ottla_operator.topics import TopicLook

_log = logging.getLogger("ottla.control")
#: How long something that went unseen is taken for real, at most.
_SWEEP_S = 300.0


class Control:
    def __init__(self, settings: Settings, kube: Kube, clock: Clock) -> None:
        self._settings = settings
        self._kube = kube
        self._clock = clock
        self._cast = Cast()
        links = Links(self._bootstrap_of)
        tools = Tools(self._cast, Observer(kube), Applier(kube, clock), links, clock)
        self._tools = tools
        self.topics = TopicLook(tools, settled_s=settings.resync_s)
        self.groups = GroupLook(tools, settled_s=settings.group_resync_s)
        clusters = ClusterLook(tools, settings.images, settled_s=settings.resync_s)
        self._looks = {CLUSTER: clusters.look, TOPIC: self.topics.look, GROUP: self.groups.look}
        self._schedule = Schedule(self._look, self._clock)
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read everything once, so that the first decision already knows who came first; then go."""
        for kind in (CLUSTER, TOPIC, GROUP):
            for body in await self._tools.observer.resources(kind, self._settings.namespaces):
                self.seen(kind, body)
        self._running = [
            asyncio.create_task(self._schedule.run()),
            asyncio.create_task(self._sweep_now_and_then()),
        ]

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._tools.links.close()
        await self._kube.close()

    def seen(self, kind: str, body: Mapping[str, Any], *, gone: bool = False) -> None:
        """From a watch: this resource exists, changed, or is gone."""
        meta = Meta.of(body)
        key = kind, *meta.key
        if gone:
            self._cast.remove(kind, meta.key)
            self._schedule.drop(key)
            if kind == CLUSTER:
                self._schedule.soon(key)  # once more, to let go of its brokers
            elif kind == GROUP:
                forget_group(meta.key)
        elif self._cast.put(kind, body):
            self._schedule.soon(key)

    async def _sweep_now_and_then(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            try:
                await self.sweep()
            except KubeError as failed:
                _log.warning("sweep_failed: %s", failed)

    async def sweep(self) -> None:
        """Let go of what is not there any more: a watch that had to begin anew shows what exists, not what went."""
        for kind, bodies in self._cast.bodies.items():
            known = [Meta.of(body) for body in bodies.values()]
            found = await self._tools.observer.resources(kind, self._settings.namespaces)
            there = {Meta.of(body).uid for body in found}
            for meta in known:
                body = self._cast.get(kind, meta.key)
                if meta.uid not in there and body is not None and Meta.of(body).uid == meta.uid:
                    self.seen(kind, body, gone=True)

    async def cannot_go(self, body: Mapping[str, Any], why: str) -> None:
        """Whoever deleted it waits for it: let them see what it waits for, and the way out."""
        meta = Meta.of(body)
        way_out = f"Tried again until it works; annotated with {PAUSED}=true it goes and leaves all as it is."
        condition = not_ready("CannotGo", f"{why} {way_out}")
        with suppress(KubeError):  # tried again as well
            await self._tools.report(meta, body, [condition], kept(body.get("status")))

    def part_seen(self, body: Mapping[str, Any]) -> None:
        """From a watch: something that belongs to a Cluster changed."""
        meta = Meta.of(body)
        owner = (body["metadata"].get("labels") or {}).get(CLUSTER_LABEL)
        if owner and self._cast.get(CLUSTER, (meta.namespace, owner)) is not None:
            self._schedule.soon((CLUSTER, meta.namespace, owner))

    def _bootstrap_of(self, namespace: str, cluster: str) -> str:
        return self._settings.bootstrap or Names(namespace, cluster).bootstrap_address(GRPC_PORT)

    async def _look(self, key: Key) -> float | None:
        kind, *place = key
        started = self._clock.monotonic()
        result = "failed"
        try:
            delay_s = await self._looks[kind]((place[0], place[1]))
            result = "done"
        finally:
            RECONCILES.labels(kind, result).inc()
            RECONCILE_SECONDS.labels(kind).observe(self._clock.monotonic() - started)
        self._count(kind)
        return delay_s

    def _count(self, kind: str) -> None:
        bodies = self._cast.bodies[kind].values()
        well = sum(1 for body in bodies if is_ready(body.get("status")))
        RESOURCES.labels(kind, "true").set(well)
        RESOURCES.labels(kind, "false").set(len(bodies) - well)
