"""How many connections clients may have, over all listeners of a protocol. [P]"""

from __future__ import annotations


class Seats:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    def take(self) -> bool:
        """False if none is left."""
        if self.taken >= self._limit:
            return False
        self.taken += 1
        return True

    def leave(self) -> None:
        self.taken -= 1
