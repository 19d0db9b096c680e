"""The operator: wires its parts, owns the schedule, passes each resource to the reconciler of its kind. [S]

`handlers.py` passes watch events to it; nothing else calls it. It makes no decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from ottla_core.ports.clock import Clock
from ottla_operator.apply import Applier
from ottla_operator.brokers import Links
from ottla_operator.cast import CLUSTER, GROUP, REBALANCE, TOPIC, USER, Cast, Tools
from ottla_operator.clusters import ClusterLook
from ottla_operator.groups import GroupLook
from ottla_operator.kube import Kube, KubeError
from ottla_operator.metrics import RECONCILE_SECONDS, RECONCILES, RESOURCES, forget_group
from ottla_operator.observe import Observer
from ottla_operator.pod_parts import CLUSTER_LABEL
from ottla_operator.pulse import Pulse
from ottla_operator.rebalances import RebalanceLook
from ottla_operator.removals import Removals
from ottla_operator.schedule import Key, Schedule
from ottla_operator.settings import Settings
from ottla_operator.specs import GROUP as API_GROUP
from ottla_operator.specs import Meta
from ottla_operator.status import is_ready
from ottla_operator.topics import TopicLook
from ottla_operator.users import UserLook
from ottla_operator.ways import Ways

_log = structlog.get_logger("ottla.control")
#: Interval of the check for deletions that the watches missed.
_SWEEP_S = 300.0
#: Earlier versions put it on Topics and ConsumerGroups. It is removed, so that no deletion waits for an operator.
OLD_FINALIZER = f"{API_GROUP}/brokers"
PULSE, REMOVAL = "Pulse", "Removal"
#: Retry delay of a removal while a reconciliation of the deleted resource is in progress.
_BUSY_S = 0.2


class Control:
    def __init__(self, settings: Settings, kube: Kube, clock: Clock) -> None:
        self._settings = settings
        self._kube = kube
        self._clock = clock
        self._cast = Cast()
        observer = Observer(kube)
        links = Links(Ways(observer, self._cast, settings.bootstrap).of)
        tools = Tools(self._cast, observer, Applier(kube, clock), links, clock)
        self._tools = tools
        self.topics = TopicLook(tools, settled_s=settings.resync_s)
        self.groups = GroupLook(tools, settled_s=settings.group_resync_s)
        clusters = ClusterLook(tools, settings.images, settled_s=settings.resync_s)
        self.users = UserLook(tools, settled_s=settings.resync_s)
        self._removals = Removals(
            tools, {TOPIC: self.topics.remove, GROUP: self.groups.remove, USER: self.users.remove}
        )
        self._looks = {
            CLUSTER: clusters.look,
            TOPIC: self.topics.look,
            GROUP: self.groups.look,
            USER: self.users.look,
            REBALANCE: RebalanceLook(tools, settled_s=settings.resync_s).look,
            REMOVAL: self._removals.look,
            PULSE: Pulse(tools, self._soon).look,
        }
        self._schedule = Schedule(self._look, self._clock, expected=(KubeError,))
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read all resources, so that the first decision knows which resource is oldest; then start the schedule."""
        for kind in (CLUSTER, TOPIC, GROUP, REBALANCE, USER):
            for body in await self._tools.observer.resources(kind, self._settings.namespaces):
                self.seen(kind, body)
                await self._drop_finalizer(body)
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
        """From a watch: this resource exists, changed, or was deleted."""
        meta = Meta.of(body)
        key = kind, *meta.key
        if gone:
            self._cast.remove(kind, meta.key)
            self._schedule.drop(key)
            if kind == CLUSTER:
                self._schedule.soon(key)  # once more, to close the connection to its brokers
                self._look_at_all_of(meta.key)
            elif (removal := self._removals.add(body)) is not None:
                self._schedule.soon((REMOVAL, *removal))
            if kind == GROUP:
                forget_group(meta.key)
        elif self._cast.put(kind, body):
            self._schedule.soon(key)
            if kind == CLUSTER:
                self._schedule.soon((PULSE, *meta.key))
                self._look_at_all_of(meta.key)

    def _soon(self, key: Key) -> None:
        self._schedule.soon(key)

    def _look_at_all_of(self, cluster: tuple[str, str]) -> None:
        """The Cluster was created, changed or deleted: reconcile the resources that name it at once."""
        for kind in (TOPIC, GROUP, REBALANCE, USER):
            for key in self._cast.of_cluster(kind, *cluster):
                self._schedule.soon((kind, *key))

    async def _sweep_now_and_then(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            try:
                await self.sweep()
            except KubeError as failed:
                _log.warning("listing resources failed", error=str(failed))

    async def sweep(self) -> None:
        """Drop resources that no longer exist: a restarted watch shows existing objects, not missed deletions."""
        for kind, bodies in self._cast.bodies.items():
            known = [Meta.of(body) for body in bodies.values()]
            found = await self._tools.observer.resources(kind, self._settings.namespaces)
            for each in found:
                await self._drop_finalizer(each)
            there = {Meta.of(body).uid for body in found}
            for meta in known:
                body = self._cast.get(kind, meta.key)
                if meta.uid not in there and body is not None and Meta.of(body).uid == meta.uid:
                    self.seen(kind, body, gone=True)

    async def _drop_finalizer(self, body: Mapping[str, Any]) -> None:
        finalizers = body["metadata"].get("finalizers") or []
        if OLD_FINALIZER not in finalizers:
            return
        meta = Meta.of(body)
        try:
            await self._tools.applier.release(meta, OLD_FINALIZER, finalizers)
        except KubeError as failed:  # the next sweep tries again
            _log.warning("finalizer not removed", kind=meta.kind, resource=meta.full_name, error=str(failed))

    def part_seen(self, body: Mapping[str, Any]) -> None:
        """From a watch: an object of a Cluster changed."""
        meta = Meta.of(body)
        owner = (body["metadata"].get("labels") or {}).get(CLUSTER_LABEL)
        if owner and self._cast.get(CLUSTER, (meta.namespace, owner)) is not None:
            self._schedule.soon((CLUSTER, meta.namespace, owner))

    async def _look(self, key: Key) -> float | None:
        kind, *place = key
        if kind == REMOVAL and self._removals.is_busy((place[0], place[1]), self._schedule.is_busy):
            return _BUSY_S
        started = self._clock.monotonic()
        result = "failed"
        try:
            delay_s = await self._looks[kind]((place[0], place[1]))
            result = "done"
        finally:
            RECONCILES.labels(kind, result).inc()
            RECONCILE_SECONDS.labels(kind).observe(self._clock.monotonic() - started)
        if kind in self._cast.bodies:
            self._count(kind)
        return delay_s

    def _count(self, kind: str) -> None:
        bodies = self._cast.bodies[kind].values()
        well = sum(1 for body in bodies if is_ready(body.get("status")))
        RESOURCES.labels(kind, "true").set(well)
        RESOURCES.labels(kind, "false").set(len(bodies) - well)
