"""Cache of the resources as the watches last showed them, and the tools that all reconcilers share. [S]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla_core.ports.clock import Clock
from ottla_operator.access_spec import ANY_NAMESPACE
from ottla_operator.apply import Applier
from ottla_operator.brokers import Links
from ottla_operator.observe import Observer
from ottla_operator.plan import Claim, owner_of
from ottla_operator.specs import ClusterRef, GroupSpec, InvalidSpec, Meta, TopicSpec
from ottla_operator.status import READY, Condition, not_ready, with_conditions
from ottla_operator.times import rfc3339
from ottla_operator.user_spec import UserSpec

CLUSTER, TOPIC, GROUP, REBALANCE, USER = "Cluster", "Topic", "ConsumerGroup", "Rebalance", "User"
Claiming = TopicSpec | GroupSpec | UserSpec


@dataclass(slots=True)
class Cast:
    """All resources of the operator's kinds, by kind and (namespace, name)."""

    bodies: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = field(
        default_factory=lambda: {CLUSTER: {}, TOPIC: {}, GROUP: {}, REBALANCE: {}, USER: {}}
    )

    #: (kind, namespace of the cluster, cluster, topic, group or user) -> the resources that name it, by uid.
    _claims: dict[tuple[str, str, str, str], dict[str, Claim]] = field(default_factory=dict)

    def put(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Whether it needs reconciliation: it is new, or more than its status changed."""
        meta = Meta.of(body)
        before = self.bodies[kind].get(meta.key)
        self.remove(kind, meta.key)
        self.bodies[kind][meta.key] = body
        if (claimed := _claimed(kind, body)) is not None:
            self._claims.setdefault(claimed, {})[meta.uid] = Claim(
                meta.created, meta.uid, meta.name, meta.namespace
            )
        return before is None or _essence(Meta.of(before)) != _essence(meta)

    def remove(self, kind: str, key: tuple[str, str]) -> None:
        body = self.bodies[kind].pop(key, None)
        if body is not None and (claimed := _claimed(kind, body)) is not None:
            claims = self._claims[claimed]
            del claims[Meta.of(body).uid]
            if not claims:
                del self._claims[claimed]

    def owner(self, namespace: str, spec: Claiming) -> Claim | None:
        """The resource that owns a topic, group or user: the oldest that names it and may."""
        claims = self._claims.get(_claim_of(namespace, spec), {}).values()
        place = spec.cluster.place(namespace)
        return owner_of(claim for claim in claims if self.is_allowed(claim.namespace, place))

    def is_allowed(self, namespace: str, place: tuple[str, str]) -> bool:
        """Whether resources of this namespace may name the Cluster at `place`."""
        return allows(self.get(CLUSTER, place), namespace, place)

    def refusal(self, meta: Meta, cluster: ClusterRef) -> Condition | None:
        """Why a resource cannot use the Cluster that it names."""
        place = cluster.place(meta.namespace)
        if not self.is_allowed(meta.namespace, place):
            return not_ready(
                "NotAllowed",
                f"Cluster {place[1]!r} in namespace {place[0]} does not allow resources of namespace {meta.namespace}: "
                "its allowedNamespaces must list it.",
            )
        if self.get(CLUSTER, place) is None:
            return not_ready("NoCluster", f"There is no Cluster {place[1]!r} in namespace {place[0]}.")
        return None

    def of_cluster(self, kind: str, namespace: str, cluster: str) -> list[tuple[str, str]]:
        """Keys of the Topics, ConsumerGroups or Rebalances that name this Cluster."""
        return [
            key for key, body in self.bodies[kind].items() if _names(body, key[0]) == (namespace, cluster)
        ]

    def get(self, kind: str, key: tuple[str, str]) -> Mapping[str, Any] | None:
        return self.bodies[kind].get(key)

    def all(self, kind: str) -> Iterator[Mapping[str, Any]]:
        yield from list(self.bodies[kind].values())


def allows(cluster: Mapping[str, Any] | None, namespace: str, place: tuple[str, str]) -> bool:
    """Whether a Cluster lets resources of another namespace name it; its own namespace always may."""
    if namespace == place[0]:
        return True
    allowed = ((cluster or {}).get("spec") or {}).get("allowedNamespaces") or ()
    return bool({namespace, ANY_NAMESPACE} & set(allowed))


def _names(body: Mapping[str, Any], own: str) -> tuple[str, str] | None:
    """Namespace and name of the Cluster that a resource names."""
    try:
        return ClusterRef.of(body.get("spec") or {}).place(own)
    except InvalidSpec:
        return None


def _claimed(kind: str, body: Mapping[str, Any]) -> tuple[str, str, str, str] | None:
    reader: type[Claiming] | None = {TOPIC: TopicSpec, GROUP: GroupSpec, USER: UserSpec}.get(kind)
    if reader is None:
        return None
    try:
        return _claim_of(Meta.of(body).namespace, reader.of(body))
    except InvalidSpec:
        return None


def _claim_of(namespace: str, spec: Claiming) -> tuple[str, str, str, str]:
    place = spec.cluster.place(namespace)
    match spec:
        case TopicSpec():
            return TOPIC, *place, spec.topic
        case GroupSpec():
            return GROUP, *place, spec.group
        case UserSpec():
            return USER, *place, spec.user


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

    async def cluster_stays(self, meta: Meta, cluster: ClusterRef) -> bool:
        """Whether the state of a deleted resource is to be removed from this Cluster's brokers.

        Read from the API server each time: in a namespace that is being deleted the Cluster may be deleted too.
        """
        place = cluster.place(meta.namespace)
        found = await self.observer.resource(CLUSTER, *place)
        return found is not None and not Meta.of(found).deleting and allows(found, meta.namespace, place)

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
