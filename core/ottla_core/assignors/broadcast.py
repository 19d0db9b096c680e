"""Broadcast: every member reads every partition of the topics that it subscribes to. [P]

For caches and configuration topics. All members commit into the same offsets, so such a group should
not rely on committed offsets of its own.
"""

from __future__ import annotations

from ottla_core.assignors.model import Assignment, Members, Parameters, Topology
from ottla_core.ids import TopicPartition


class BroadcastAssignor:
    name = "broadcast"
    shares_partitions = True

    def assign(self, topology: Topology, members: Members, parameters: Parameters) -> Assignment:
        return {
            member_id: [
                TopicPartition(topic, index)
                for topic in sorted(member.topics)
                for index in range(topology.counts.get(topic, 0))
            ]
            for member_id, member in members.items()
        }
