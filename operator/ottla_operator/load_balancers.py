"""Addresses of external listeners that the spec does not name: those that load balancers were given. [S]

The broker advertises such an address and its certificate names it, so both follow when the Service has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ottla_operator import secured
from ottla_operator.cast import Tools
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.specs import Meta
from ottla_operator.status import Condition, not_ready


class LoadBalancers:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        #: Cluster uid -> addresses by broker, as they were found last: a controller that restarts may empty a Service's
        #: status for a moment, and a broker that starts then needs its address too.
        self._known: dict[str, dict[int, str]] = {}

    async def resolve(self, meta: Meta, spec: ClusterSpec, body: Mapping[str, Any]) -> ClusterSpec:
        """The spec with the addresses that are known, also of brokers that are being drained."""
        external = spec.access.external
        if external is None or not external.is_discovered:
            self._known.pop(meta.uid, None)
            return spec
        known, found = self._known.get(meta.uid, {}), {}
        running = len((body.get("status") or {}).get("brokers") or ())
        for broker in range(max(spec.brokers, running)):
            address = await self._tools.observer.ingress(
                meta.namespace, secured.external_service_name(meta, broker)
            )
            if address := address or known.get(broker):
                found[broker] = address
        self._known[meta.uid] = found
        access = replace(spec.access, external=replace(external, addresses=found))
        return replace(spec, access=access)


def missing(meta: Meta, spec: ClusterSpec) -> Condition | None:
    """A condition if a broker has no address yet: it cannot start."""
    external = spec.access.external
    if external is None:
        return None
    left = [each for each in range(spec.brokers) if not external.host_of(each)]
    if not left:
        return None
    name = secured.external_service_name(meta, left[0])
    return not_ready(
        "NoAddress",
        f"Service {name} has no address yet, and {len(left)} of {spec.brokers} brokers wait for theirs. Load balancers "
        "come from the cloud or from a controller such as MetalLB; listeners.external.advertisedHost needs none.",
    )
