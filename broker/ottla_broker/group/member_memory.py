"""Memory that the members of groups hold, and its bound. [P]

Each shard counts its own members; the bound (`group.members.max.bytes`) is for all shards of the broker together. Only
members that join or send more than before are refused: what a log holds is loaded, and members may always rejoin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla_broker.group.messages import Protocol
from ottla_core.errors import GroupMaxSizeReached

#: What a member costs beside what it sends: objects, timers, keys.
MEMBER_BYTES = 1024


def protocol_bytes(protocols: Iterable[Protocol]) -> int:
    return sum(len(each.name) + len(each.metadata) for each in protocols)


class MemberMemory:
    __slots__ = ("_held_everywhere", "_limit", "bytes")

    def __init__(self, limit: int, held_everywhere: Callable[[], int] | None = None) -> None:
        """`held_everywhere` sums all shards of the broker."""
        self._limit = limit
        self.bytes = 0
        self._held_everywhere = held_everywhere or (lambda: self.bytes)

    @property
    def members_at_most(self) -> int:
        """Members of this shard; fewer if they send much."""
        return self.bytes // MEMBER_BYTES

    def check(self, more: int) -> None:
        """GroupMaxSizeReached if there is no room for so many bytes more."""
        if more > 0 and (held := self._held_everywhere()) + more > self._limit:
            raise GroupMaxSizeReached(
                f"The members of all groups of this coordinator hold {held} bytes; "
                f"group.members.max.bytes is {self._limit}."
            )
