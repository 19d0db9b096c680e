"""How many connections Kafka clients may have: on one listener, and from one address on all of them. [P]

Each listener has its own part of `max.connections`, so that the clients of one cannot shut out those of another, such
as administrators on a listener that only they reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ottla_broker.quota import normal_ip


class Addresses:
    """`max.connections.per.ip` and its overrides."""

    def __init__(self, limit: int, overrides: Mapping[str, int] = MappingProxyType({})) -> None:
        self._limit = limit
        self._overrides = overrides
        #: Connections by address; no zeros.
        self._taken: dict[str, int] = {}

    def take(self, address: str) -> bool:
        address = normal_ip(address)
        taken = self._taken.get(address, 0)
        if taken >= self._overrides.get(address, self._limit):
            return False
        self._taken[address] = taken + 1
        return True

    def leave(self, address: str) -> None:
        address = normal_ip(address)
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]


class Seats:
    def __init__(self, limit: int, addresses: Addresses | None = None) -> None:
        self.limit = limit
        self._addresses = addresses
        self.taken = 0

    def take(self, address: str) -> bool:
        """False if none is left, on the listener or for the address."""
        if self.taken >= self.limit:
            return False
        if self._addresses is not None and not self._addresses.take(address):
            return False
        self.taken += 1
        return True

    def leave(self, address: str) -> None:
        self.taken -= 1
        if self._addresses is not None:
            self._addresses.leave(address)
