"""Holds clients to their quotas: charges requests, and tells edges how long their senders have to wait. [S]

Without quotas it costs a request one look at a flag. Rates live as long as the quotas do not change. When there are too
many, those go that have the least to wait for: a rate at its full balance is the same when it is made again, and a
client cannot shed its debt by inventing client ids.
"""

from __future__ import annotations

from heapq import nlargest

from ottla_broker.caller import Caller
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.metrics import QuotaProbe
from ottla_broker.quota import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    REQUEST_PERCENTAGE,
    Entity,
    Rate,
    match,
    match_address,
    normal_ip,
    rate_of,
)
from ottla_core.errors import ThrottlingQuotaExceeded
from ottla_core.ports.clock import Clock

#: Clients choose their client ids, so there may be any number of rates.
_RATES_MAX = 10_000


class Throttling:
    def __init__(self, metadata: Metadata, clock: Clock, probe: QuotaProbe) -> None:
        self._clock = clock
        self._probe = probe
        self._rates: dict[tuple[str, Entity], Rate] = {}
        #: Which rate a client has, by quota, user and client id (or address); None if it has none.
        self._matched: dict[tuple[str, str, str], Rate | None] = {}
        self._quotas = metadata.image.quotas
        self._set_flags()
        metadata.subscribe(self._on_image)

    def _set_flags(self) -> None:
        #: Whether users or client ids have quotas, whether some are of time, and whether addresses have quotas.
        self.is_on = any(entity.ip is None for entity in self._quotas)
        self.is_timed = any(REQUEST_PERCENTAGE in quotas for quotas in self._quotas.values())
        self.limits_connections = any(entity.ip is not None for entity in self._quotas)

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.quotas is not new.quotas:
            self._quotas = new.quotas
            self._set_flags()
            self._matched.clear()
            if not new.quotas:
                self._rates.clear()

    def charge(self, caller: Caller, quota: str, amount: float) -> float:
        """The seconds that the caller has to wait for what it used just now."""
        rate = self._rate(caller, quota)
        wait_s = 0.0 if rate is None else rate.charge(amount, self._clock.monotonic())
        if wait_s:
            self._count(quota, wait_s)
        return wait_s

    def until_room(self, caller: Caller, quota: str, amount: float) -> float:
        """The seconds until the caller may use so much; nothing is charged."""
        rate = self._rate(caller, quota)
        wait_s = 0.0 if rate is None else rate.until_room(amount, self._clock.monotonic())
        if wait_s:
            self._count(quota, wait_s)
        return wait_s

    def burst(self, caller: Caller, quota: str) -> float:
        """What the caller may use at once after it was idle; infinity without a quota."""
        rate = self._rate(caller, quota)
        return float("inf") if rate is None else rate.burst

    def connected(self, address: str) -> float:
        """0 if a client of this address may connect now, else the seconds until it may. Refusals are not charged."""
        key = (CONNECTION_CREATION_RATE, address, "")
        if key not in self._matched:
            found = match_address(self._quotas, normal_ip(address))
            self._remember(key, None if found is None else self._shared(key[0], found.limit, found.shared_by))
        rate = self._matched[key]
        if rate is None:
            return 0.0
        now = self._clock.monotonic()
        wait_s = rate.until_room(1.0, now)
        if wait_s:
            self._count(key[0], wait_s)
        else:
            rate.charge(1.0, now)
        return wait_s

    def mutations(self, caller: Caller, *, strict: bool) -> Mutations:
        return Mutations(self, caller, strict=strict)

    async def pause(self, wait_s: float) -> None:
        """For edges whose protocol cannot tell the client to wait."""
        await self._clock.sleep(wait_s)

    def now(self) -> float:
        return self._clock.monotonic()

    # ------------------------------------------------------------------ rates

    def _count(self, quota: str, wait_s: float) -> None:
        self._probe.throttled.add(quota)
        self._probe.seconds.observe(wait_s)

    def _rate(self, caller: Caller, quota: str) -> Rate | None:
        user = caller.principal.partition(":")[2]
        key = (quota, user, caller.client_id)
        if key not in self._matched:
            found = match(self._quotas, quota, user, caller.client_id)
            self._remember(key, None if found is None else self._shared(quota, found.limit, found.shared_by))
        return self._matched[key]

    def _remember(self, key: tuple[str, str, str], rate: Rate | None) -> None:
        if len(self._matched) >= _RATES_MAX:
            self._matched.clear()
        self._matched[key] = rate

    def _shared(self, quota: str, limit: float, shared_by: Entity) -> Rate:
        made = rate_of(quota, limit, self._clock.monotonic())
        rate = self._rates.get((quota, shared_by))
        if rate is None or rate.limit != made.limit:
            if len(self._rates) >= _RATES_MAX:
                self._forget_rates()
            rate = self._rates[quota, shared_by] = made
        return rate

    def _forget_rates(self) -> None:
        """Those at their full balance, and of the others those that are full soonest, until half are left."""
        now = self._clock.monotonic()
        waits = ((rate.until_full(now), key) for key, rate in self._rates.items())
        owing = nlargest(_RATES_MAX // 2, (each for each in waits if each[0] > 0.0), key=lambda each: each[0])
        self._rates = {key: self._rates[key] for _, key in owing}
        # No client may go on with a rate that others do not share.
        self._matched.clear()


class Mutations:
    """Charges the partitions that one request creates or deletes (KIP-599).

    Strict, as newer versions of the requests: what comes after the quota is used up is refused. Otherwise all of it is
    done, and the client waits.
    """

    __slots__ = ("_caller", "_strict", "_throttling", "wait_s")

    def __init__(self, throttling: Throttling, caller: Caller, *, strict: bool) -> None:
        self._throttling = throttling
        self._caller = caller
        self._strict = strict
        #: How long the client has to wait now.
        self.wait_s = 0.0

    def charge(self, partitions: int) -> None:
        """ThrottlingQuotaExceeded if these may not be changed now."""
        throttling = self._throttling
        if not throttling.is_on:
            return
        if self._strict:
            wait_s = throttling.until_room(self._caller, CONTROLLER_MUTATION_RATE, 0.0)
            if wait_s:
                self.wait_s = max(self.wait_s, wait_s)
                raise ThrottlingQuotaExceeded(
                    f"The quota controller_mutation_rate of this client is used up; try again in {wait_s:.1f} s."
                )
            # What overdraws the quota is done; only the next one is refused.
            throttling.charge(self._caller, CONTROLLER_MUTATION_RATE, partitions)
        else:
            wait_s = throttling.charge(self._caller, CONTROLLER_MUTATION_RATE, partitions)
            self.wait_s = max(self.wait_s, wait_s)
