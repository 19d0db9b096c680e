"""Base of producer, consumer and admin: a cluster connection with start and stop. [S]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from ottla_client.cluster import Cluster
from ottla_client.security import Security, security_of
from ottla_core.real.chance import RealChance
from ottla_core.real.clock import RealClock


class Connected:
    """`async with` starts and stops it; a failed start stops what it has started."""

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        check_names(cls, settings)
        return super().__new__(cls)

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        request_timeout_ms: float,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        metadata_max_age_ms: float = 300_000,
        security: Security | Mapping[str, str] | None = None,
        client_id: str = "",
    ) -> None:
        check_positive(request_timeout_ms=request_timeout_ms, metadata_max_age_ms=metadata_max_age_ms)
        self._clock = RealClock()
        self._chance = RealChance()
        self._request_timeout_s = request_timeout_ms / 1000
        self._backoff_s = retry_backoff_ms / 1000
        self._backoff_max_s = retry_backoff_max_ms / 1000
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._cluster = Cluster(
            bootstrap_servers,
            clock=self._clock,
            chance=self._chance,
            request_timeout_s=self._request_timeout_s,
            backoff_s=self._backoff_s,
            backoff_max_s=self._backoff_max_s,
            max_age_s=self._metadata_max_age_s,
            security=security_of(security),
            client_id=client_id,
        )

    @property
    def cluster(self) -> Cluster:
        """The connection, for callers that ask the brokers for more."""
        return self._cluster

    async def start(self) -> None:
        """Connect. `async with` does it for you."""
        await self._cluster.open()

    async def stop(self) -> None:
        """Disconnect."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def check_names(kind: type, given: Iterable[str]) -> None:
    """TypeError for a setting that `kind` does not have, with the one that was probably meant."""
    init: Any = kind.__init__  # type: ignore[misc]
    known = ["bootstrap_servers", *(init.__kwdefaults__ or ())]
    for name in given:
        if name not in known:
            import difflib  # not needed by programs without mistakes

            close = difflib.get_close_matches(name.replace(".", "_"), known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"It has {', '.join(known)}."
            raise TypeError(f"{kind.__name__.lstrip('_')} has no setting {name!r}. {hint}")


def check_positive(**settings: float) -> None:
    """ValueError if a setting is not positive."""
    for name, value in settings.items():
        if value <= 0:
            raise ValueError(f"{name}={value!r}: must be more than 0.")
