"""Which copies of moved partitions are under way, as the store tells it (I24)."""

from __future__ import annotations

from ottla_broker.controller.reassignment import new_copies
from ottla_broker.metadata.image import PartitionImage
from ottla_core.ids import NO_BROKER

#: Partitions that a broker of a world copies at once.
MOVES_MAX = 1


class Copies:
    """Those that began, and whose partition has had a leader and whose broker was out of sync ever since: others the
    controller may not count, because they copy nothing for a while."""

    def __init__(self) -> None:
        self._under_way: dict[str, tuple[int, ...]] = {}

    def note(self, key: str, was: PartitionImage, now: PartitionImage) -> dict[int, int]:
        """After a write: how many copies each broker has now that begins one with it."""
        begun = new_copies(was, now) if now.adding else ()
        before = self._under_way.pop(key, ())
        left = tuple(r for r in (*before, *begun) if r in now.copying)
        if left:
            self._under_way[key] = left
        return {
            broker: sum(broker in copying for copying in self._under_way.values())
            for broker in begun
            if now.leader != NO_BROKER
        }

    def forget(self, key: str) -> None:
        self._under_way.pop(key, None)
