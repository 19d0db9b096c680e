"""Which half-open TLS handshake gives way when there are too many: the oldest of the address that has the most. [P]

A client that is served finishes its handshake in milliseconds. Without a bound, peers that connect and say nothing
would hold all of `max.connections` for as long as a handshake may take, again and again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class HalfOpen(Generic[T]):
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._addresses: dict[T, str] = {}
        #: The handshakes of each address, oldest first; no empty ones.
        self._of: dict[str, dict[T, None]] = {}

    def add(self, handshake: T, address: str) -> T | None:
        """Returns the one that has to give way, which is no longer counted."""
        out = None
        if len(self._addresses) >= self._limit:
            busiest = max(self._of.values(), key=len)
            out = next(iter(busiest))
            self.remove(out)
        self._addresses[handshake] = address
        self._of.setdefault(address, {})[handshake] = None
        return out

    def remove(self, handshake: T) -> None:
        address = self._addresses.pop(handshake, None)
        if address is None:
            return
        of = self._of[address]
        del of[handshake]
        if not of:
            del self._of[address]
