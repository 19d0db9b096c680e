"""Range: per topic, each member gets consecutive partitions, so topics with equal counts are co-partitioned. [P]"""

from __future__ import annotations

from ottla_core.assignors.model import (
    Assignment,
    Members,
    Parameters,
    Topology,
    ranked,
    readers_by_topic,
)
from ottla_core.ids import TopicPartition


class RangeAssignor:
    name = "range"
    shares_partitions = False

    def assign(self, topology: Topology, members: Members, parameters: Parameters) -> Assignment:
        made: Assignment = {member_id: [] for member_id in members}
        for topic, readers in readers_by_topic(topology, ranked(members)).items():
            each, extra = divmod(topology.counts[topic], len(readers))
            start = 0
            for number, member_id in enumerate(readers):
                size = each + (number < extra)
                made[member_id].extend(TopicPartition(topic, index) for index in range(start, start + size))
                start += size
        return made
