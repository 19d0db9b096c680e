"""Keeps the ConfigMap with the racks of all nodes current, for Clusters that want it. [S]"""

from __future__ import annotations

from ottla_operator import racks
from ottla_operator.cast import Tools
from ottla_operator.cluster_spec import RackSpec
from ottla_operator.kube import KubeError
from ottla_operator.specs import Meta
from ottla_operator.status import Condition, not_ready


class Nodes:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        #: Cluster uid -> the last warning about nodes without a rack, to warn once.
        self._warned: dict[str, str | None] = {}

    async def keep(self, meta: Meta, spec: RackSpec | None) -> Condition | None:
        """A condition if the operator may not list nodes."""
        if spec is None:
            return None
        try:
            nodes = await self._tools.observer.nodes()
        except KubeError as failed:
            if failed.code != 403:
                raise
            return not_ready(
                "Forbidden", f"{failed} Allow the operator to list nodes: operator.nodes=true in its chart."
            )
        found = racks.racks_of(spec, nodes, self._tools.clock.wall_ms())
        await self._tools.applier.apply(racks.config_map(meta, found))
        said = racks.warning(spec, found)
        if said is not None and self._warned.get(meta.uid) != said:
            await self._tools.applier.event(meta, "RackUnknown", said, warning=True)
        self._warned[meta.uid] = said
        return None
