"""Whether a broker may be declared dead before its lease ends. [P]

A killed process refuses connections at once, so waiting six seconds for its lease would be a waste. But a
wrong verdict costs elections, so it takes (design rule 15):

* S1: refused connections, or another incarnation at its address. A timeout is not evidence: the broker may be
  paused, or the network may be down; then its lease decides.
* S2: each witness probes twice.
* S3: two witnesses, if there are two: one of the other registered brokers must have found the same. Brokers
  that refuse connections themselves cannot be asked, and do not count; a silent one does.
* S4: at most half of the brokers within the time of a lease. A broker that finds all others dead is more likely
  isolated itself.

`failure_detector.py` probes and asks; this module only judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from uuid import UUID

from ottla_broker.metadata.image import ClusterImage
from ottla_core.ports.peers import Presence, Probe

LOOKS = 2


class Verdict(Enum):
    DEAD = "dead"
    ALIVE = "alive"
    #: Silence, or nothing at all.
    UNKNOWN = "unknown"


def is_refused(probe: Probe, incarnation: UUID) -> bool:
    """S1."""
    if probe.presence is Presence.HERE:
        return probe.incarnation != incarnation
    return probe.presence is Presence.REFUSED


def verdict(probes: Sequence[Probe], incarnation: UUID) -> Verdict:
    """The verdict of one witness after its probes of this incarnation."""
    if any(p.presence is Presence.HERE and p.incarnation == incarnation for p in probes):
        return Verdict.ALIVE
    dead = len(probes) >= LOOKS and all(is_refused(p, incarnation) for p in probes)  # S2
    return Verdict.DEAD if dead else Verdict.UNKNOWN


def is_proven(own: Verdict, others: Mapping[int, Verdict | None]) -> bool:
    """Whether the suspect is dead. `others` are all other registered brokers; None for those that refuse
    connections."""
    if own is not Verdict.DEAD or Verdict.ALIVE in others.values():
        return False
    askable = [said for said in others.values() if said is not None]
    return not askable or Verdict.DEAD in askable  # S3


class RemovalLimit:
    """S4, from the images: removals by other brokers count too."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        #: When each broker last went offline without announcing it.
        self._vanished: dict[int, float] = {}

    def on_image(self, old: ClusterImage, new: ClusterImage, now: float) -> None:
        for broker_id, was in old.brokers.items():
            found = new.brokers.get(broker_id)
            if (found is None or found.revision != was.revision) and not was.stopping:
                self._vanished[broker_id] = now

    def allows(self, broker_id: int, image: ClusterImage, now: float) -> bool:
        lately = {i for i, when in self._vanished.items() if now - when < self._ttl_s}
        gone = lately | {broker_id}
        return 2 * len(gone) <= len(gone | set(image.brokers))
