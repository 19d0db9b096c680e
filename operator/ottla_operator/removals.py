"""Clean-up on the brokers after a resource was deleted: delete the topic, unset the group's settings. [S]

Resources have no finalizer, so a deletion never waits for the operator, and a namespace never hangs. The cost: a
resource that is deleted while no operator runs leaves its topic or settings on the brokers. That is the safe side: a
missing resource is never a reason to delete records, because a restore from a backup looks the same.

`control.py` adds the deletions that its watches see. Each entry is retried until it succeeds, its Cluster is deleted,
or `_GIVE_UP_S` have passed. The first and the last failure are Warning events of the Cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from ottla_core.errors import RequestError
from ottla_operator.brokers import BrokersAway
from ottla_operator.cast import CLUSTER, Tools
from ottla_operator.kube import KubeError
from ottla_operator.specs import ClusterRef, InvalidSpec, Meta

_log = structlog.get_logger("ottla.removals")

#: Retry limit. If the brokers do not answer for this long, the topic stays.
_GIVE_UP_S = 3600.0
#: Delay between attempts: doubles from the first value to the last.
_RETRY_S = (1.0, 30.0)
#: Limit of pending entries: a namespace with thousands of Topics may be deleted at once.
_ENTRIES_MAX = 20_000

Remove = Callable[[Mapping[str, Any]], Awaitable[None]]


@dataclass(slots=True)
class _Entry:
    body: Mapping[str, Any]
    since: float
    attempts: int = 0


class Removals:
    def __init__(self, tools: Tools, remove: Mapping[str, Remove]) -> None:
        """`remove` does the work, by kind: it raises errors that are worth a retry and returns when it is done."""
        self._tools = tools
        self._remove = remove
        self._entries: dict[tuple[str, str], _Entry] = {}

    def add(self, body: Mapping[str, Any]) -> tuple[str, str] | None:
        """The key to schedule, or None if there is nothing to do."""
        meta = Meta.of(body)
        if meta.kind not in self._remove or meta.paused:
            return None
        if len(self._entries) >= _ENTRIES_MAX:
            _log.error("too many removals; left on its brokers", kind=meta.kind, resource=meta.full_name)
            return None
        key = meta.namespace, meta.uid
        self._entries[key] = _Entry(body, self._tools.clock.monotonic())
        return key

    def is_busy(self, key: tuple[str, str], looked_at: Callable[[tuple[str, str, str]], bool]) -> bool:
        """Whether a reconciliation of the deleted resource is still in progress; it might recreate the topic."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        meta = Meta.of(entry.body)
        return looked_at((meta.kind, *meta.key))

    async def look(self, key: tuple[str, str]) -> float | None:
        """One attempt. Returns the seconds until the next, None when it is finished."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        meta = Meta.of(entry.body)
        try:
            found = await self._tools.observer.resource(meta.kind, *meta.key)
            if found is None or Meta.of(found).uid != meta.uid:  # else the resource still exists
                await self._remove[meta.kind](entry.body)
        except (BrokersAway, KubeError) as failed:
            return await self._again(key, entry, str(failed))
        except RequestError as refused:
            if refused.retriable:
                return await self._again(key, entry, refused.message)
            await self._warn(entry.body, f"{refused.message} It stays on the brokers.")
        del self._entries[key]
        return None

    async def _again(self, key: tuple[str, str], entry: _Entry, why: str) -> float | None:
        entry.attempts += 1
        if self._tools.clock.monotonic() - entry.since > _GIVE_UP_S:
            await self._warn(entry.body, f"{why} It stays on the brokers.")
            del self._entries[key]
            return None
        if entry.attempts == 1:
            await self._warn(entry.body, f"{why} The operator tries again.")
        return float(min(_RETRY_S[1], _RETRY_S[0] * 2.0 ** min(entry.attempts - 1, 10)))

    async def _warn(self, body: Mapping[str, Any], why: str) -> None:
        """Write the event on the Cluster: the resource itself no longer exists."""
        meta = Meta.of(body)
        try:
            place = ClusterRef.of(body.get("spec") or {}).place(meta.namespace)
        except InvalidSpec:
            return
        cluster = self._tools.cast.get(CLUSTER, place)
        if cluster is not None:
            message = f"{meta.kind} {meta.name} was deleted, but its state on the brokers was not: {why}"
            await self._tools.applier.event(Meta.of(cluster), "RemovalFailed", message, warning=True)
