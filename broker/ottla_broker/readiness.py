"""Decides whether this broker is not ready because its replicas are behind. [P]

On Kubernetes a drain may evict the next broker as soon as all are ready. So a broker that has just started is ready
only when it is back in the ISR of every partition it holds. `broker.py` asks at each probe. Addresses of pods that are
not ready stay published, so clients still reach the partitions that it leads.

* At least one live broker stays ready even if all lag: clients must find a first address. One that is not ready is
  enough for a PodDisruptionBudget to refuse evictions.
* Partitions without a leader do not count: there is no broker to copy from. Nor do those whose log directory has
  failed.
* A broker that was in sync and falls behind is not ready after `grace_s` only; one that does not catch up within
  `timeout_s` is ready again, because a partition that never catches up must not hold up drains for ever.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from ottla_broker.metadata.image import ClusterImage

#: An ISR that shrinks and grows again within this is no reason to leave the Service.
GRACE_S = 10.0


def lagging(image: ClusterImage) -> dict[int, int]:
    """Live brokers with copies that are behind -> how many."""
    found: dict[int, int] = {}
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if not partition.is_under_replicated or partition.leader not in image.brokers:
                continue
            for broker_id in partition.replicas:
                broker = image.brokers.get(broker_id)
                if broker is None or broker_id in (*partition.isr, *partition.adding, *partition.removing):
                    continue
                if not broker.has_lost(topic.id, number):
                    found[broker_id] = found.get(broker_id, 0) + 1
    return found


def stays_ready(behind: AbstractSet[int], image: ClusterImage) -> int | None:
    """The one that is ready although it lags, because all live brokers do."""
    live = set(image.brokers)
    return min(live) if live and live <= behind else None


class CatchUp:
    """The memory between two probes."""

    def __init__(self, broker_id: int, *, timeout_s: float, grace_s: float = GRACE_S) -> None:
        self._broker_id = broker_id
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._image: ClusterImage | None = None
        self._behind = 0
        self._excused = False
        #: Since when copies are behind; None while none is.
        self._since: float | None = None
        #: Whether all copies have been in sync since the start.
        self._was_in_sync = False

    def reason(self, image: ClusterImage, now: float) -> str | None:
        """Why this broker is not ready; None if it is."""
        if image is not self._image:  # a walk over all partitions, for a new image only
            behind = lagging(image)
            self._behind = behind.get(self._broker_id, 0)
            self._excused = stays_ready(behind.keys(), image) == self._broker_id
            self._image = image
        if not self._behind:
            self._since, self._was_in_sync = None, True
            return None
        self._since = now if self._since is None else self._since
        waited = now - self._since
        if self._excused or waited >= self._timeout_s or (self._was_in_sync and waited < self._grace_s):
            return None
        return f"{self._behind} replicas of this broker are catching up and not in sync yet"
