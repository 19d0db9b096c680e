"""How often the members of broker-side groups send heartbeats: often while they are few. [P]

A member learns at its heartbeats that it has to give up partitions, and that others are free for it: a rebalance takes
as long as the slowest member's interval, twice. Kafka's interval is the same for any number of members, 5 s. Here it is
shorter while a coordinator's shard has few members, so that all of them together send a bounded number of heartbeats a
second, and shortest for a member that waits for partitions of others. Called by `machine`.
"""

from __future__ import annotations

#: Per member of the shard: at most 20 heartbeats a second for each partition of __consumer_offsets, and so at most 1000
#: in a cluster with the default of 50 partitions.
_MS_PER_MEMBER = 50
#: The same for members that wait for partitions; a rebalance ends, so they may take more.
_WAITING_MS_PER_MEMBER = 10
_WAITING_LEAST_MS = 100


def heartbeat_interval_ms(members: int, least_ms: int, most_ms: int, *, waits: bool) -> int:
    """`members`: of all groups of the shard; `waits`: it is about to get partitions that others still own."""
    if waits:
        return min(most_ms, max(min(_WAITING_LEAST_MS, least_ms), members * _WAITING_MS_PER_MEMBER))
    return min(most_ms, max(least_ms, members * _MS_PER_MEMBER))
