"""Looking up offsets by time, from the leaders of the partitions. [S]

Used by consumer and admin. Retries what can be retried until the time is up.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla_client.cluster import Cluster
from ottla_client.connection import told
from ottla_client.errors import ClientError, UnknownTopicOrPartition
from ottla_client.record import OffsetAndTimestamp
from ottla_core.errors import LeaderNotAvailable, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.pb import broker_pb2 as pb
from ottla_core.ports.clock import Clock

_PAUSE_S = 0.05
#: Partitions per request: far below the broker's limit, and its loop answers others in between.
_QUERIES_PER_CALL = 1000


async def list_offsets(
    cluster: Cluster,
    clock: Clock,
    wanted: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    read_committed: bool = False,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The offset for each timestamp (-1 latest, -2 earliest, -3 newest record); -1 where no record is that young."""
    deadline = clock.monotonic() + timeout_s
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    missing = dict(wanted)
    while True:
        errors: dict[TopicPartition, Exception] = {}
        by_leader = _by_leader(cluster, missing, errors)
        for leader, queries in by_leader.items():
            left_s = max(0.001, deadline - clock.monotonic())
            for start in range(0, len(queries), _QUERIES_PER_CALL):
                some = dict(list(queries.items())[start : start + _QUERIES_PER_CALL])
                await _ask(cluster, leader, some, left_s, read_committed, found, errors)
        missing = {tp: timestamp for tp, timestamp in missing.items() if tp not in found}
        if not missing:
            return {tp: found[tp] for tp in wanted}
        # No error and no answer: a broker that left between two looks, or that answers for others than asked.
        first = next(iter(errors.values()), LeaderNotAvailable(f"Nobody answered for {next(iter(missing))}."))
        if clock.monotonic() + _PAUSE_S > deadline or (
            isinstance(first, RequestError) and not first.retriable
        ):
            raise first
        await clock.sleep(_PAUSE_S)
        refused = await cluster.refresh(
            list(dict.fromkeys(tp.topic for tp in missing)),
            timeout_s=max(0.001, deadline - clock.monotonic()),
        )
        for error in refused.values():
            raise error
        for tp in missing:
            layout = cluster.topics.get(tp.topic)
            if layout is not None and tp.partition not in layout.partitions:
                last = len(layout.partitions) - 1
                raise UnknownTopicOrPartition(
                    f"Topic {tp.topic!r} has partitions 0 to {last}, not {tp.partition}."
                )


def _by_leader(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], errors: dict[TopicPartition, Exception]
) -> dict[int, dict[TopicPartition, int]]:
    grouped: dict[int, dict[TopicPartition, int]] = {}
    for tp, timestamp_ms in wanted.items():
        leader = cluster.leader(tp)
        if cluster.broker(leader) is None:
            errors[tp] = LeaderNotAvailable(f"{tp} has no leader that we know of.")
        else:
            grouped.setdefault(leader, {})[tp] = timestamp_ms
    return grouped


async def _ask(
    cluster: Cluster,
    leader: int,
    queries: Mapping[TopicPartition, int],
    timeout_s: float,
    read_committed: bool,
    found: dict[TopicPartition, OffsetAndTimestamp],
    errors: dict[TopicPartition, Exception],
) -> None:
    broker = cluster.broker(leader)
    request = pb.ListOffsetsRequest(
        read_committed=read_committed,
        queries=[
            pb.OffsetQuery(topic=tp.topic, partition=tp.partition, timestamp_ms=timestamp_ms, leader_epoch=-1)
            for tp, timestamp_ms in queries.items()
        ],
    )
    if broker is None:
        return
    try:
        answer = await cluster.call_at(broker, "ListOffsets", request, timeout_s)
    except (ClientError, RequestError) as error:
        errors.update((tp, error) for tp in queries)
        return
    for each in answer.answers:
        tp = TopicPartition(each.topic, each.partition)
        if each.HasField("error"):
            errors[tp] = told(each.error)
        else:
            found[tp] = OffsetAndTimestamp(each.offset, each.timestamp_ms)
