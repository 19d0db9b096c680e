"""Reads a cluster's placement for the planner, and starts moves, through `Admin`. [S]"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_client.admin import Admin
from ottla_client.cluster_admin import Reassignment
from ottla_client.rebalance import Broker, Move, Placed
from ottla_client.rebalance_pace import Layout, Ongoing
from ottla_core.ids import TopicPartition


async def read_layout(admin: Admin) -> Layout:
    """Brokers, partitions and moves. These are several requests, so moves may begin or end between them.

    The moves are read first and last: a partition that appears in only one of the answers counts as moving, so a
    replica that is being removed is never missed.
    """
    before = await admin.list_partition_reassignments()
    found = await admin.describe_brokers(sizes=False)
    topics = await admin.describe_topics()
    sizes: dict[TopicPartition, int] = {}
    for each in await admin.describe_replicas():
        sizes[each.tp] = max(sizes.get(each.tp, 0), each.bytes)
    moving = {each.tp: each for each in [*before, *await admin.list_partition_reassignments()]}
    partitions = []
    for topic in topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition)
            target = moving[tp].target if tp in moving else partition.replicas
            partitions.append(Placed(tp.topic, tp.partition, target, sizes.get(tp, 0)))
    return Layout(
        tuple(Broker(each.id, each.rack, cordoned=each.cordoned) for each in found.brokers),
        frozenset(each.id for each in found.brokers if each.online),
        tuple(partitions),
        {(tp.topic, tp.partition): _ongoing(each) for tp, each in moving.items()},
    )


def _ongoing(each: Reassignment) -> Ongoing:
    total = sum(max(0, replica.bytes_total) for replica in each.progress)
    return Ongoing(
        each.adding, each.removing, total - sum(replica.bytes_left for replica in each.progress), total
    )


async def start_moves(admin: Admin, moves: Sequence[Move]) -> None:
    """Start all moves, then raise the first error."""
    targets = {TopicPartition(move.topic, move.partition): move.after for move in moves}
    for outcome in await admin.alter_partition_reassignments(targets) if targets else ():
        if outcome.error is not None:
            raise outcome.error
