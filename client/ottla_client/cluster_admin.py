"""Administration of the cluster: moves of partitions, elections, cordons, loads of brokers. [S]

`Admin` has the public methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ottla_client.cluster import Cluster
from ottla_client.connection import exception_of
from ottla_client.errors import CannotConnect
from ottla_core.errors import RequestError, RequestTimedOut
from ottla_core.ids import TopicPartition
from ottla_core.pb import broker_pb2 as pb

Call: TypeAlias = Callable[[str, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    id: int
    #: gRPC and Kafka addresses; empty while the broker is offline.
    host: str
    port: int
    kafka_host: str
    kafka_port: int
    rack: str
    online: bool
    #: It gets no new replicas.
    cordoned: bool
    #: It is about to stop.
    stopping: bool
    #: Also those that are being added or removed.
    replicas: int
    leaders: int
    #: Of its logs, and of the volumes of its log directories; -1 if unknown.
    bytes: int
    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerLoad, ...]


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    tp: TopicPartition
    broker: int
    bytes: int
    #: Committed records that it lacks.
    offset_lag: int


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    tp: TopicPartition
    #: None: done, or begun.
    error: RequestError | None


@dataclass(frozen=True, slots=True)
class AddedReplica:
    """Progress of one added replica, estimated from the sizes of its log and the leader's."""

    broker: int
    in_sync: bool
    #: -1 if a broker did not answer.
    bytes_copied: int
    bytes_total: int

    @property
    def bytes_left(self) -> int:
        """0 if unknown."""
        return 0 if self.in_sync else max(0, self.bytes_total - max(0, self.bytes_copied))


_OBSTACLES = {
    pb.MOVE_OBSTACLE_QUEUED: "queued",
    pb.MOVE_OBSTACLE_NO_LEADER: "no leader",
    pb.MOVE_OBSTACLE_BROKER_OFFLINE: "broker offline",
}


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition in motion."""

    tp: TopicPartition
    #: Those of the target first.
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    progress: tuple[AddedReplica, ...]
    #: Not begun yet. What it will add and remove is listed.
    waiting: bool = False
    #: Why nothing is copied now: "queued", "no leader" or "broker offline"; empty if nothing stands in its way.
    obstacle: str = ""

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(r for r in self.replicas if r not in self.removing)


@dataclass(frozen=True, slots=True)
class ReplicaInDir:
    tp: TopicPartition
    bytes: int
    #: Records that it lacks.
    offset_lag: int
    #: A copy that will take the place of the replica in another directory of the broker.
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker."""

    broker: int
    path: str
    #: Set: it is offline, and nothing else is known.
    error: RequestError | None
    #: Of its volume; -1 if unknown.
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaInDir, ...]


class ClusterAdmin:
    def __init__(self, cluster: Cluster, ask: Call, change: Call, timeout_ms: int) -> None:
        """`ask` is retried until a broker answers, `change` is sent once."""
        self._cluster = cluster
        self._ask = ask
        self._change = change
        self._timeout_ms = timeout_ms

    async def describe_brokers(self, *, sizes: bool) -> ClusterLoad:
        answer = await self._ask("DescribeCluster", pb.DescribeClusterRequest(include_sizes=sizes))
        return ClusterLoad(
            answer.cluster_id, answer.controller_id, tuple(_load(each) for each in answer.brokers)
        )

    async def describe_replicas(self, topics: Sequence[str] | None) -> list[ReplicaSize]:
        if topics is not None and not topics:
            return []
        request = pb.DescribeReplicasRequest(topics=_whole_topics(topics))
        answer = await self._ask("DescribeReplicas", request)
        return [
            ReplicaSize(TopicPartition(r.topic, r.partition), r.broker, r.bytes, r.offset_lag)
            for r in answer.replicas
        ]

    async def describe_log_dirs(self, topics: Sequence[str] | None) -> list[LogDir]:
        request = pb.DescribeLogDirsRequest(topics=_whole_topics(topics))
        answer = await self._ask("DescribeLogDirs", request)
        return [_log_dir(each) for each in answer.dirs]

    async def describe_metrics(self, names: Sequence[str], timeout_s: float) -> dict[int, str]:
        await self._cluster.refresh([], timeout_s=timeout_s)
        brokers = self._cluster.brokers_by_id()
        request = pb.DescribeMetricsRequest(names=names)
        answers = await asyncio.gather(
            *(
                self._cluster.call_at(each, "DescribeMetrics", request, timeout_s)
                for each in brokers.values()
            ),
            return_exceptions=True,
        )
        found: dict[int, str] = {}
        failures: list[BaseException] = []
        for broker_id, answer in zip(brokers, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[broker_id] = answer.text.decode()
            elif isinstance(answer, CannotConnect | RequestTimedOut):
                failures.append(answer)
            else:
                raise answer
        if failures and not found:
            raise failures[0]
        return found

    async def alter_log_dirs(
        self, targets: Mapping[tuple[int, TopicPartition], str]
    ) -> list[PartitionOutcome]:
        request = pb.AlterReplicaLogDirsRequest()
        for (broker, tp), path in targets.items():
            request.replicas.add(broker=broker, topic=tp.topic, partition=tp.partition, path=path)
        return _outcomes(await self._change("AlterReplicaLogDirs", request))

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, keep_replication_factor: bool
    ) -> list[PartitionOutcome]:
        request = pb.AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms, keep_replication_factor=keep_replication_factor
        )
        for (topic, partition), replicas in targets.items():
            if replicas is not None and not replicas:
                raise ValueError(f"The target of {topic}-{partition} names no brokers; None cancels a move.")
            request.partitions.add(topic=topic, partition=partition, replicas=replicas)
        return _outcomes(await self._change("AlterPartitionReassignments", request))

    async def list_reassignments(self, topics: Sequence[str] | None) -> list[Reassignment]:
        if topics is not None and not topics:
            return []
        request = pb.ListPartitionReassignmentsRequest(topics=_whole_topics(topics))
        answer = await self._ask("ListPartitionReassignments", request)
        return [_reassignment(each) for each in answer.partitions]

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None, *, unclean: bool
    ) -> list[PartitionOutcome]:
        chosen: dict[str, list[int]] = {}
        for topic, partition in partitions or ():
            chosen.setdefault(topic, []).append(partition)
        if partitions is not None and not chosen:
            return []
        request = pb.ElectLeadersRequest(
            type=pb.ELECTION_TYPE_UNCLEAN if unclean else pb.ELECTION_TYPE_PREFERRED,
            topics=[pb.TopicPartitions(topic=name, partitions=some) for name, some in chosen.items()],
            timeout_ms=self._timeout_ms,
        )
        return _outcomes(await self._change("ElectLeaders", request))

    async def cordon(self, broker: int) -> None:
        _raise(await self._change("CordonBroker", pb.CordonBrokerRequest(broker=broker)))

    async def uncordon(self, broker: int) -> None:
        _raise(await self._change("UncordonBroker", pb.UncordonBrokerRequest(broker=broker)))

    async def unregister(self, broker: int) -> None:
        _raise(await self._change("UnregisterBroker", pb.UnregisterBrokerRequest(broker=broker)))


def _raise(answer: Any) -> None:
    if answer.HasField("error"):
        raise exception_of(answer.error)


def _outcomes(answer: Any) -> list[PartitionOutcome]:
    return [
        PartitionOutcome(
            TopicPartition(each.topic, each.partition),
            exception_of(each.error) if each.HasField("error") else None,
        )
        for each in answer.partitions
    ]


def _whole_topics(topics: Sequence[str] | None) -> list[pb.TopicPartitions]:
    return [pb.TopicPartitions(topic=name) for name in topics or ()]


def _load(details: pb.BrokerDetails) -> BrokerLoad:
    info = details.info
    return BrokerLoad(
        info.id,
        info.host,
        info.port,
        info.kafka_host,
        info.kafka_port,
        info.rack,
        details.online,
        details.cordoned,
        details.stopping,
        details.replicas,
        details.leaders,
        details.bytes,
        details.total_bytes,
        details.usable_bytes,
    )


def _log_dir(found: pb.LogDirDetails) -> LogDir:
    return LogDir(
        found.broker,
        found.path,
        exception_of(found.error) if found.HasField("error") else None,
        found.total_bytes,
        found.usable_bytes,
        tuple(
            ReplicaInDir(TopicPartition(r.topic, r.partition), r.bytes, r.offset_lag, r.is_future)
            for r in found.replicas
        ),
    )


def _reassignment(ongoing: pb.OngoingReassignment) -> Reassignment:
    return Reassignment(
        TopicPartition(ongoing.topic, ongoing.partition),
        tuple(ongoing.replicas),
        tuple(ongoing.adding),
        tuple(ongoing.removing),
        tuple(
            AddedReplica(each.broker, each.in_sync, each.bytes_copied, each.bytes_total)
            for each in ongoing.progress
        ),
        ongoing.waiting,
        _OBSTACLES.get(ongoing.obstacle, ""),
    )
