"""Cache of the resources as the watches last showed them, and the tools that all reconcilers share. [S]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla_core.ports.clock import Clock
from ottla_operator.apply import Applier
from ottla_operator.brokers import Links
from ottla_operator.observe import Observer
from ottla_operator.plan import Claim, owner_of
from ottla_operator.specs import GroupSpec, InvalidSpec, Meta, TopicSpec
from ottla_operator.status import READY, Condition, with_conditions
from ottla_operator.times import rfc3339

CLUSTER, TOPIC, GROUP, REBALANCE = "Cluster", "Topic", "ConsumerGroup", "Rebalance"


@dataclass(slots=True)
class Cast:
    """All resources of the operator's kinds, by kind and (namespace, name)."""

    bodies: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = field(
        default_factory=lambda: {CLUSTER: {}, TOPIC: {}, GROUP: {}, REBALANCE: {}}
    )

    #: (kind, namespace, cluster, topic or group) -> the resources that name it, by uid.
    _claims: dict[tuple[str, str, str, str], dict[str, Claim]] = field(default_factory=dict)

    def put(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Whether it needs reconciliation: it is new, or more than its status changed."""
        meta = Meta.of(body)
        before = self.bodies[kind].get(meta.key)
        self.remove(kind, meta.key)
        self.bodies[kind][meta.key] = body
        if (claimed := _claimed(kind, body)) is not None:
            self._claims.setdefault(claimed, {})[meta.uid] = Claim(meta.created, meta.uid, meta.name)
        return before is None or _essence(Meta.of(before)) != _essence(meta)

    def remove(self, kind: str, key: tuple[str, str]) -> None:
        body = self.bodies[kind].pop(key, None)
        if body is not None and (claimed := _claimed(kind, body)) is not None:
            claims = self._claims[claimed]
            del claims[Meta.of(body).uid]
            if not claims:
                del self._claims[claimed]

    def owner(self, namespace: str, spec: TopicSpec | GroupSpec) -> Claim | None:
        """The resource that owns a topic or group: the oldest that names it."""
        claims = self._claims.get(_claim_of(namespace, spec), {}).values()
        return owner_of(claims)

    def of_cluster(self, kind: str, namespace: str, cluster: str) -> list[tuple[str, str]]:
        """Keys of the Topics, ConsumerGroups or Rebalances that name this Cluster."""
        return [
            key
            for key, body in self.bodies[kind].items()
            if key[0] == namespace and ((body.get("spec") or {}).get("cluster") or {}).get("name") == cluster
        ]

    def get(self, kind: str, key: tuple[str, str]) -> Mapping[str, Any] | None:
        return self.bodies[kind].get(key)

    def all(self, kind: str) -> Iterator[Mapping[str, Any]]:
        yield from list(self.bodies[kind].values())


def _claimed(kind: str, body: Mapping[str, Any]) -> tuple[str, str, str, str] | None:
    if kind not in (TOPIC, GROUP):
        return None
    try:
        spec = TopicSpec.of(body) if kind == TOPIC else GroupSpec.of(body)
    except InvalidSpec:
        return None
    return _claim_of(Meta.of(body).namespace, spec)


def _claim_of(namespace: str, spec: TopicSpec | GroupSpec) -> tuple[str, str, str, str]:
    if isinstance(spec, TopicSpec):
        return TOPIC, namespace, spec.cluster, spec.topic
    return GROUP, namespace, spec.cluster, spec.group


def _essence(meta: Meta) -> tuple[object, ...]:
    return meta.uid, meta.generation, meta.deleting, meta.paused


@dataclass(frozen=True, slots=True)
class Tools:
    """Dependencies of every reconciler."""

    cast: Cast
    observer: Observer
    applier: Applier
    links: Links
    clock: Clock

    def now(self) -> str:
        return rfc3339(self.clock.wall_ms())

    async def report(
        self,
        meta: Meta,
        body: Mapping[str, Any],
        conditions: Sequence[Condition | None],
        facts: Mapping[str, Any],
    ) -> None:
        """Write the status if it differs, and an event if the reason for not being ready changed."""
        said = [each for each in conditions if each is not None]
        previous = body.get("status")
        status = with_conditions(meta, previous, said, self.now(), facts)
        if status == previous:
            return
        await self.applier.status(meta, status)
        ready = next((each for each in said if each.type == READY), None)
        if ready is not None and ready.holds is False and ready.reason != _reason_in(previous):
            await self.applier.event(meta, ready.reason, ready.message, warning=True)


def _reason_in(status: Mapping[str, Any] | None) -> str | None:
    for row in (status or {}).get("conditions") or ():
        if row.get("type") == READY:
            return str(row.get("reason"))
    return None
