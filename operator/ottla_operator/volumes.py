"""Grows the claims of a Cluster's brokers to the sizes of its spec, and reports how far they are. [S]

Removed brokers keep their claims, which are used again when the broker returns; so they grow with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla_operator.cast import Tools
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.kube import KubeError
from ottla_operator.specs import Meta
from ottla_operator.status import Condition
from ottla_operator.volume_growth import REFUSED, RESIZED, broker_of, condition_of, growths, is_of_broker

#: Status codes of a refusal: the StorageClass cannot grow volumes, or a claim is not bound yet.
_REFUSALS = (403, 422)


class Volumes:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def keep(self, meta: Meta, spec: ClusterSpec, body: Mapping[str, Any]) -> Condition | None:
        """The condition; None if pods have no claims."""
        if spec.storage.ephemeral:
            return None
        condition = await self._grow(meta, spec)
        before = _condition(body.get("status") or {})
        if before and before.get("reason") != condition.reason:
            reason = RESIZED if condition.holds else f"Volumes{condition.reason}"
            warns = condition.reason == REFUSED
            await self._tools.applier.event(meta, reason, condition.message, warning=warns)
        return condition

    async def _grow(self, meta: Meta, spec: ClusterSpec) -> Condition:
        try:
            found = await self._tools.observer.claims(meta)
        except KubeError as failed:
            if failed.code != 403:
                raise
            return Condition(RESIZED, None, "Forbidden", f"{failed} Update the operator's rights (RBAC).")
        claims = {each["metadata"]["name"]: each for each in found if is_of_broker(each, meta.name)}
        refused: dict[str, str] = {}
        for growth in growths(spec.storage, list(claims.values())):
            try:
                after = await self._tools.applier.grow(meta.namespace, growth.claim, growth.size)
            except KubeError as failed:
                if failed.code not in _REFUSALS:
                    raise
                refused[growth.claim] = str(failed)
                continue
            claims[growth.claim] = after
        in_use = [each for each in claims.values() if broker_of(each) < spec.brokers]
        return condition_of(spec.storage, in_use, refused)


def _condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((row for row in status.get("conditions") or () if row.get("type") == RESIZED), {})
