"""Which connection gives way when too many have not begun in earnest: the oldest of the address that has the most. [P]

They are counted in two places: during the TLS handshake, and until the login (on listeners without logins, until the
first request). A client that is served is through both in milliseconds. Without a bound, peers that connect and say
nothing would hold all of a listener's connections for as long as a handshake or a login may take, again and again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

#: And at most a quarter of the listener's connections, so that there is room beside the silent ones. A half-open
#: handshake has some 50 KB.
_HALF_OPEN_MAX = 500


def half_open_max(connections_max: int) -> int:
    return min(_HALF_OPEN_MAX, max(1, connections_max // 4))


def silent_max(connections_max: int) -> int:
    """More than a handshake's, because it costs little memory, and because thousands of clients that lost their
    connections together come back in the same moment: all are accepted before the first one is heard."""
    return max(1, connections_max // 2)


class HalfOpen(Generic[T]):
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._addresses: dict[T, str] = {}
        #: The connections of each address, oldest first; no empty ones.
        self._of: dict[str, dict[T, None]] = {}

    def add(self, connection: T, address: str) -> T | None:
        """Returns the one that has to give way, which is no longer counted."""
        out = None
        if len(self._addresses) >= self._limit:
            busiest = max(self._of.values(), key=len)
            out = next(iter(busiest))
            self.remove(out)
        self._addresses[connection] = address
        self._of.setdefault(address, {})[connection] = None
        return out

    def remove(self, connection: T) -> None:
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        of = self._of[address]
        del of[connection]
        if not of:
            del self._of[address]
