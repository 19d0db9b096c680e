"""`ottla.v1.Admin`, second half: moves, elections, cordons, loads of brokers. Translates to the cluster service. [S]"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ottla_broker.caller import Caller
from ottla_broker.controller.commands.move_partitions import Move
from ottla_broker.edge.grpc.native_service import NativeService
from ottla_broker.edge.grpc.refusal import guarded
from ottla_broker.edge.grpc.translation import broker_info, error_message, timeout_s
from ottla_broker.edge.grpc.visits import filled
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.requests import PartitionResult
from ottla_broker.service.cluster import BrokerLoad, OngoingMove
from ottla_broker.service.log_dirs import DescribedDir, DirTarget, ReplicaInDir
from ottla_broker.service.replica_sizes import BrokerSizes, ReplicaSize, Wanted
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.pb import broker_pb2 as pb

#: The method in the proto, the method here, and its request.
CLUSTER_CALLS: dict[str, tuple[str, Any]] = {
    "DescribeCluster": ("describe_cluster", pb.DescribeClusterRequest),
    "DescribeReplicas": ("describe_replicas", pb.DescribeReplicasRequest),
    "AlterPartitionReassignments": (
        "alter_partition_reassignments",
        pb.AlterPartitionReassignmentsRequest,
    ),
    "ListPartitionReassignments": ("list_partition_reassignments", pb.ListPartitionReassignmentsRequest),
    "DescribeLogDirs": ("describe_log_dirs", pb.DescribeLogDirsRequest),
    "AlterReplicaLogDirs": ("alter_replica_log_dirs", pb.AlterReplicaLogDirsRequest),
    "ElectLeaders": ("elect_leaders", pb.ElectLeadersRequest),
    "CordonBroker": ("cordon_broker", pb.CordonBrokerRequest),
    "UncordonBroker": ("uncordon_broker", pb.UncordonBrokerRequest),
    "UnregisterBroker": ("unregister_broker", pb.UnregisterBrokerRequest),
    "DescribeMetrics": ("describe_metrics", pb.DescribeMetricsRequest),
}


class Moves(Protocol):
    def move(
        self, moves: Sequence[Move], *, keep_replication_factor: bool = False, timeout_s: float
    ) -> Awaitable[list[PartitionResult]]: ...

    def elect(
        self, partitions: Mapping[str, Sequence[int]] | None, *, unclean: bool, timeout_s: float
    ) -> Awaitable[list[PartitionResult]]: ...

    def cordon(self, broker: int, *, cordoned: bool, timeout_s: float) -> Awaitable[None]: ...

    def unregister(self, broker: int, *, timeout_s: float) -> Awaitable[None]: ...

    def moves(self, wanted: Wanted = None) -> Awaitable[list[OngoingMove]]: ...

    def loads(self, *, sizes: bool) -> Awaitable[list[BrokerLoad]]: ...

    def replica_sizes(self, wanted: Wanted = None) -> Awaitable[dict[int, BrokerSizes | None]]: ...

    def log_dirs(self, wanted: Wanted = None) -> Awaitable[dict[int, list[DescribedDir] | None]]: ...

    def alter_log_dirs(
        self, targets: Mapping[int, Sequence[DirTarget]]
    ) -> Awaitable[dict[int, list[RequestError | None]]]: ...


class Pages(Protocol):
    def page(self, names: Collection[str] = ()) -> Awaitable[bytes]: ...


class ClusterServices(Protocol):
    """What this edge needs of the services object."""

    @property
    def image(self) -> ClusterImage: ...

    @property
    def cluster(self) -> Moves: ...

    @property
    def metrics(self) -> Pages: ...

    @property
    def caller(self) -> Caller: ...


class ClusterAdminService(NativeService[ClusterServices]):
    @guarded
    async def describe_cluster(
        self, request: pb.DescribeClusterRequest, context: Any
    ) -> pb.DescribeClusterResponse:
        services = self._enter(context)
        loads = await services.cluster.loads(sizes=request.include_sizes)
        image = services.image
        return pb.DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=image.controller,
            brokers=[_details(load, services.caller.listener) for load in loads],
        )

    @guarded
    async def describe_replicas(
        self, request: pb.DescribeReplicasRequest, context: Any
    ) -> pb.DescribeReplicasResponse:
        services = self._enter(context)
        response = pb.DescribeReplicasResponse()
        wanted = _every_partition(services.image, request.topics)
        for broker, sizes in sorted((await services.cluster.replica_sizes(wanted)).items()):
            if sizes is None:
                response.unanswered.append(broker)
                continue
            await filled(
                self.scheduler, response.replicas, partial(_replica_size, broker), list(sizes.replicas)
            )
        return response

    @guarded
    async def alter_partition_reassignments(
        self, request: pb.AlterPartitionReassignmentsRequest, context: Any
    ) -> pb.AlterPartitionReassignmentsResponse:
        moves = [
            Move(each.topic, each.partition, tuple(each.replicas) or None) for each in request.partitions
        ]
        results = await self._enter(context).cluster.move(
            moves,
            keep_replication_factor=request.keep_replication_factor,
            timeout_s=timeout_s(request.timeout_ms),
        )
        response = pb.AlterPartitionReassignmentsResponse()
        await filled(self.scheduler, response.partitions, _outcome, list(results))
        return response

    @guarded
    async def list_partition_reassignments(
        self, request: pb.ListPartitionReassignmentsRequest, context: Any
    ) -> pb.ListPartitionReassignmentsResponse:
        wanted = {each.topic: frozenset(each.partitions) for each in request.topics} or None
        moves = await self._enter(context).cluster.moves(wanted)
        response = pb.ListPartitionReassignmentsResponse()
        await filled(self.scheduler, response.partitions, _ongoing, list(moves))
        return response

    @guarded
    async def describe_log_dirs(
        self, request: pb.DescribeLogDirsRequest, context: Any
    ) -> pb.DescribeLogDirsResponse:
        services = self._enter(context)
        response = pb.DescribeLogDirsResponse()
        wanted = _every_partition(services.image, request.topics)
        for broker, dirs in sorted((await services.cluster.log_dirs(wanted)).items()):
            if dirs is None:
                response.unanswered.append(broker)
                continue
            for each in dirs:
                made = response.dirs.add(
                    broker=broker,
                    path=each.path,
                    error=None if each.error is None else error_message(each.error),
                    total_bytes=each.total_bytes,
                    usable_bytes=each.usable_bytes,
                )
                await filled(self.scheduler, made.replicas, _replica_in_dir, list(each.replicas))
        return response

    @guarded
    async def alter_replica_log_dirs(
        self, request: pb.AlterReplicaLogDirsRequest, context: Any
    ) -> pb.AlterReplicaLogDirsResponse:
        targets: dict[int, list[DirTarget]] = {}
        for each in request.replicas:
            target = DirTarget(TopicPartition(each.topic, each.partition), each.path)
            targets.setdefault(each.broker, []).append(target)
        outcomes = await self._enter(context).cluster.alter_log_dirs(targets)
        left = {broker: iter(some) for broker, some in outcomes.items()}
        results = [PartitionResult(r.topic, r.partition, next(left[r.broker])) for r in request.replicas]
        response = pb.AlterReplicaLogDirsResponse()
        await filled(self.scheduler, response.partitions, _outcome, results)
        return response

    @guarded
    async def elect_leaders(self, request: pb.ElectLeadersRequest, context: Any) -> pb.ElectLeadersResponse:
        results = await self._enter(context).cluster.elect(
            {each.topic: list(each.partitions) for each in request.topics} or None,
            unclean=request.type == pb.ELECTION_TYPE_UNCLEAN,
            timeout_s=timeout_s(request.timeout_ms),
        )
        response = pb.ElectLeadersResponse()
        await filled(self.scheduler, response.partitions, _outcome, list(results))
        return response

    @guarded
    async def cordon_broker(self, request: pb.CordonBrokerRequest, context: Any) -> pb.CordonBrokerResponse:
        work = self._enter(context).cluster.cordon(request.broker, cordoned=True, timeout_s=timeout_s(0))
        return pb.CordonBrokerResponse(error=await _error_of(work))

    @guarded
    async def uncordon_broker(
        self, request: pb.UncordonBrokerRequest, context: Any
    ) -> pb.UncordonBrokerResponse:
        work = self._enter(context).cluster.cordon(request.broker, cordoned=False, timeout_s=timeout_s(0))
        return pb.UncordonBrokerResponse(error=await _error_of(work))

    @guarded
    async def unregister_broker(
        self, request: pb.UnregisterBrokerRequest, context: Any
    ) -> pb.UnregisterBrokerResponse:
        work = self._enter(context).cluster.unregister(request.broker, timeout_s=timeout_s(0))
        return pb.UnregisterBrokerResponse(error=await _error_of(work))

    @guarded
    async def describe_metrics(
        self, request: pb.DescribeMetricsRequest, context: Any
    ) -> pb.DescribeMetricsResponse:
        names = frozenset(request.names)
        return pb.DescribeMetricsResponse(text=await self._enter(context).metrics.page(names))


async def _error_of(work: Awaitable[None]) -> pb.Error | None:
    try:
        await work
    except RequestError as error:
        return error_message(error)
    return None


def _replica_size(broker: int, replica: ReplicaSize) -> pb.ReplicaSize:
    return pb.ReplicaSize(
        topic=replica.topic,
        partition=replica.partition,
        broker=broker,
        bytes=replica.bytes,
        offset_lag=replica.offset_lag,
    )


def _replica_in_dir(replica: ReplicaInDir) -> pb.ReplicaInDir:
    return pb.ReplicaInDir(
        topic=replica.tp.topic,
        partition=replica.tp.partition,
        bytes=replica.size_bytes,
        offset_lag=replica.offset_lag,
        is_future=replica.is_future,
    )


def _outcome(result: PartitionResult) -> pb.PartitionOutcome:
    error = None if result.error is None else error_message(result.error)
    return pb.PartitionOutcome(topic=result.topic, partition=result.partition, error=error)


def _every_partition(image: ClusterImage, topics: Iterable[pb.TopicPartitions]) -> Wanted:
    """A topic without numbers stands for all its partitions."""
    wanted = {}
    for each in topics:
        topic = image.topics.get(each.topic)
        everything = range(0 if topic is None else len(topic.partitions))
        wanted[each.topic] = frozenset(each.partitions or everything)
    return wanted or None


def _details(load: BrokerLoad, listener: str) -> pb.BrokerDetails:
    sizes = load.sizes
    offline = pb.BrokerInfo(id=load.id, rack=load.rack or "")
    return pb.BrokerDetails(
        info=offline if load.broker is None else broker_info(load.broker, listener),
        online=load.broker is not None,
        cordoned=load.cordoned,
        stopping=load.broker is not None and load.broker.stopping,
        replicas=load.replicas,
        leaders=load.leaders,
        bytes=-1 if sizes is None else sizes.bytes,
        total_bytes=-1 if sizes is None else sizes.total_bytes,
        usable_bytes=-1 if sizes is None else sizes.usable_bytes,
    )


def _ongoing(move: OngoingMove) -> pb.OngoingReassignment:
    return pb.OngoingReassignment(
        topic=move.tp.topic,
        partition=move.tp.partition,
        replicas=move.state.replicas,
        adding=move.state.adding,
        removing=move.state.removing,
        progress=[
            pb.AddedReplica(
                broker=each.broker,
                in_sync=each.in_sync,
                bytes_copied=each.bytes_copied,
                bytes_total=each.bytes_total,
            )
            for each in move.progress
        ],
        waiting=move.waits,
        obstacle=pb.MoveObstacle.Name(move.obstacle),
    )
