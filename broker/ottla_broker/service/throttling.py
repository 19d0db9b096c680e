"""Holds clients to their quotas: charges requests, and tells edges how long their senders have to wait. [S]

Without quotas it costs a request one look at a flag. Rates live as long as the quotas do not change; those of clients
that were not seen for long are dropped when there are many.
"""

from __future__ import annotations

from ottla_broker.caller import Caller
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.metrics import QuotaProbe
from ottla_broker.quota import Entity, Rate, match
from ottla_core.ports.clock import Clock

#: Clients choose their client ids, so there may be any number of rates.
_RATES_MAX = 10_000


class Throttling:
    def __init__(self, metadata: Metadata, clock: Clock, probe: QuotaProbe) -> None:
        self._clock = clock
        self._probe = probe
        self._rates: dict[tuple[str, Entity], Rate] = {}
        #: Which rate a client has, by quota, user and client id; None if it has none.
        self._matched: dict[tuple[str, str, str], Rate | None] = {}
        self._quotas = metadata.image.quotas
        self.is_on = bool(self._quotas)
        metadata.subscribe(self._on_image)

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.quotas is not new.quotas:
            self._quotas = new.quotas
            self.is_on = bool(new.quotas)
            self._matched.clear()
            if not self.is_on:
                self._rates.clear()

    def charge(self, caller: Caller, quota: str, amount: int) -> float:
        """The seconds that the caller has to wait for what it used just now."""
        user = caller.principal.partition(":")[2]
        key = (quota, user, caller.client_id)
        if key not in self._matched:
            self._matched[key] = self._find(quota, user, caller.client_id)
        rate = self._matched[key]
        if rate is None:
            return 0.0
        wait_s = rate.charge(amount, self._clock.monotonic())
        if wait_s:
            self._probe.throttled.add(quota)
            self._probe.seconds.observe(wait_s)
        return wait_s

    async def pause(self, wait_s: float) -> None:
        """For edges whose protocol cannot tell the client to wait."""
        await self._clock.sleep(wait_s)

    def _find(self, quota: str, user: str, client_id: str) -> Rate | None:
        found = match(self._quotas, quota, user, client_id)
        if len(self._matched) >= _RATES_MAX:
            self._matched.clear()
            self._rates.clear()
        if found is None:
            return None
        key = (quota, found.shared_by)
        rate = self._rates.get(key)
        if rate is None or rate.limit != found.limit:
            rate = self._rates[key] = Rate(found.limit, self._clock.monotonic())
        return rate
