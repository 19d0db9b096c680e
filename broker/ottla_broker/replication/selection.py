"""Replica selection: which replica a consumer should read from (KIP-392). [P]

As Kafka's RackAwareReplicaSelector: the leader, if it is in the consumer's rack; else the in-sync follower in that rack
with the greatest position. A follower qualifies if its position is known, so its stream to the leader is open, and
has reached the offset to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla_core.ids import NO_BROKER


def closest(
    rack: str,
    offset: int,
    leader: int,
    isr: Iterable[int],
    positions: Mapping[int, int],
    racks: Mapping[int, str],
) -> int:
    """The follower to read from at `offset`; NO_BROKER if it is best to stay with the leader."""
    if not rack or racks.get(leader) == rack:
        return NO_BROKER
    near = [
        broker_id
        for broker_id in isr
        if broker_id != leader and racks.get(broker_id) == rack and positions.get(broker_id, -1) >= offset
    ]
    return max(near, key=lambda broker_id: (positions[broker_id], -broker_id), default=NO_BROKER)
