"""`ottla.v1.Groups`: consumer groups on the native protocol, translated to the group service and back. [S]

Texts that are empty here are absent there: proto3 has no other way to leave out an instance id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla_broker.caller import Caller
from ottla_broker.edge.grpc import consumer_groups
from ottla_broker.edge.grpc.native_service import NativeService
from ottla_broker.edge.grpc.refusal import guarded
from ottla_broker.edge.grpc.translation import broker_info, error_message
from ottla_broker.edge.grpc.visits import filled, in_slices, next_slice
from ottla_broker.group import messages
from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_broker.requests import Maybe
from ottla_broker.visits import stepped
from ottla_core.errors import GroupIdNotFound, InvalidRequest, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.pb import groups_pb2 as pb

if TYPE_CHECKING:
    from ottla_broker.service.group_lag import GroupLags, Lag
    from ottla_broker.service.groups import GroupService
    from ottla_broker.service.transactions import TransactionService

GROUPS_SERVICE = "ottla.v1.Groups"
#: The method in the proto, the method here, and its request.
GROUPS_CALLS: dict[str, tuple[str, Any]] = {
    "FindCoordinator": ("find_coordinator", pb.FindCoordinatorRequest),
    "Join": ("join", pb.JoinGroupRequest),
    "Sync": ("sync", pb.SyncGroupRequest),
    "Heartbeat": ("heartbeat", pb.GroupHeartbeatRequest),
    "Leave": ("leave", pb.LeaveGroupRequest),
    "ConsumerHeartbeat": ("consumer_heartbeat", pb.ConsumerHeartbeatRequest),
    "CommitOffsets": ("commit_offsets", pb.CommitOffsetsRequest),
    "FetchOffsets": ("fetch_offsets", pb.FetchOffsetsRequest),
    "ListGroups": ("list_groups", pb.ListGroupsRequest),
    "DescribeGroups": ("describe_groups", pb.DescribeGroupsRequest),
    "DescribeLag": ("describe_lag", pb.DescribeLagRequest),
    "DeleteGroups": ("delete_groups", pb.DeleteGroupsRequest),
    "DeleteOffsets": ("delete_offsets", pb.DeleteOffsetsRequest),
}

_CONSUMER = "consumer"

T = TypeVar("T")


class GroupServices(Protocol):
    """The services object, as far as this service uses it."""

    @property
    def caller(self) -> Caller: ...

    @property
    def groups(self) -> GroupService: ...

    @property
    def lags(self) -> GroupLags: ...

    @property
    def transactions(self) -> TransactionService: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def image(self) -> ClusterImage: ...


class GroupsService(NativeService[GroupServices]):
    @guarded
    async def find_coordinator(
        self, request: pb.FindCoordinatorRequest, context: Any
    ) -> pb.FindCoordinatorResponse:
        services = self._enter(context)
        response = pb.FindCoordinatorResponse()
        for group in request.groups:
            answer = response.coordinators.add(group=group)
            try:
                found = await _got(_find(services, group, request.type))
                answer.broker.CopyFrom(broker_info(found, services.caller.listener))
            except RequestError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    # ------------------------------------------------------------------ membership

    @guarded
    async def join(self, request: pb.JoinGroupRequest, context: Any) -> pb.JoinGroupResponse:
        services = self._enter(context)
        try:
            reply = await _got(
                services.groups.join(
                    request.group,
                    request.member_id,
                    instance_id=request.group_instance_id or None,
                    client_id=request.client_id,
                    client_host="/" + services.caller.address,
                    protocol_type=request.protocol_type or _CONSUMER,
                    protocols=[messages.Protocol(p.name, p.metadata) for p in request.protocols],
                    session_timeout_ms=request.session_timeout_ms,
                    rebalance_timeout_ms=request.rebalance_timeout_ms,
                )
            )
        except RequestError as error:
            return pb.JoinGroupResponse(
                error=error_message(error), generation=-1, member_id=request.member_id
            )
        return pb.JoinGroupResponse(
            error=None if reply.error is None else error_message(reply.error),
            generation=reply.generation,
            member_id=reply.member_id,
            leader_id=reply.leader_id,
            protocol_type=reply.protocol_type or "",
            protocol=reply.protocol or "",
            members=[
                pb.JoinedMember(
                    member_id=m.member_id, group_instance_id=m.instance_id or "", metadata=m.metadata
                )
                for m in reply.members
            ],
            skip_assignment=reply.skip_assignment,
        )

    @guarded
    async def sync(self, request: pb.SyncGroupRequest, context: Any) -> pb.SyncGroupResponse:
        asked = messages.SyncGroup(
            request.group,
            request.generation,
            request.member_id,
            request.group_instance_id or None,
            request.protocol_type or None,
            request.protocol or None,
            {each.member_id: each.assignment for each in request.assignments},
        )
        try:
            reply = await _got(self._enter(context).groups.sync(asked))
        except RequestError as error:
            return pb.SyncGroupResponse(error=error_message(error))
        return pb.SyncGroupResponse(
            protocol_type=reply.protocol_type or "",
            protocol=reply.protocol or "",
            assignment=reply.assignment,
        )

    @guarded
    async def heartbeat(self, request: pb.GroupHeartbeatRequest, context: Any) -> pb.GroupHeartbeatResponse:
        beat = messages.Heartbeat(
            request.group, request.generation, request.member_id, request.group_instance_id or None
        )
        try:
            await _got(self._enter(context).groups.heartbeat(beat))
        except RequestError as error:
            return pb.GroupHeartbeatResponse(error=error_message(error))
        return pb.GroupHeartbeatResponse()

    @guarded
    async def leave(self, request: pb.LeaveGroupRequest, context: Any) -> pb.LeaveGroupResponse:
        leaving = tuple(messages.Leaving(m.member_id, m.group_instance_id or None) for m in request.members)
        try:
            reply = await _got(self._enter(context).groups.leave(messages.LeaveGroup(request.group, leaving)))
        except RequestError as error:
            return pb.LeaveGroupResponse(error=error_message(error))
        return pb.LeaveGroupResponse(
            members=[
                pb.LeftMember(
                    member_id=left.member_id,
                    group_instance_id=left.instance_id or "",
                    error=None if left.error is None else error_message(left.error),
                )
                for left in reply.members
            ]
        )

    @guarded
    async def consumer_heartbeat(
        self, request: pb.ConsumerHeartbeatRequest, context: Any
    ) -> pb.ConsumerHeartbeatResponse:
        services = self._enter(context)
        try:
            beat = consumer_groups.heartbeat(request, "/" + services.caller.address)
            reply = await _got(services.groups.consumer_heartbeat(beat))
        except RequestError as error:
            return pb.ConsumerHeartbeatResponse(error=error_message(error))
        return consumer_groups.heartbeat_response(reply, services.image.names_by_id)

    # ------------------------------------------------------------------ offsets

    @guarded
    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, context: Any
    ) -> pb.CommitOffsetsResponse:
        offsets = await in_slices(self.scheduler, offset_to_commit, request.offsets)
        from_outside = not request.member_id and request.generation <= 0
        try:
            groups = self._enter(context).groups
            reply = await stepped(
                self.scheduler,
                groups.commit_in_steps(
                    request.group,
                    messages.NO_GENERATION if from_outside else request.generation,
                    request.member_id,
                    request.group_instance_id or None,
                    offsets,
                ),
            )
            if isinstance(reply, Awaitable):
                reply = await reply
        except RequestError as error:
            return pb.CommitOffsetsResponse(error=error_message(error))
        response = pb.CommitOffsetsResponse()
        await filled(
            self.scheduler,
            response.partitions,
            committed_offset,
            list(zip(offsets, reply.errors, strict=True)),
        )
        return response

    @guarded
    async def fetch_offsets(self, request: pb.FetchOffsetsRequest, context: Any) -> pb.FetchOffsetsResponse:
        wanted = await in_slices(
            self.scheduler, lambda each: TopicPartition(each.topic, each.partition), request.partitions
        )
        try:
            reply = await _got(
                self._enter(context).groups.fetch(
                    request.group,
                    wanted or None,
                    member_id=request.member_id,
                    member_epoch=request.generation if request.member_id else messages.NO_GENERATION,
                    require_stable=request.require_stable,
                )
            )
        except RequestError as error:
            return pb.FetchOffsetsResponse(error=error_message(error))
        response = pb.FetchOffsetsResponse()
        await filled(self.scheduler, response.offsets, lambda tp: _fetched(reply.of(tp)), reply.partitions)
        return response

    @guarded
    async def delete_offsets(
        self, request: pb.DeleteOffsetsRequest, context: Any
    ) -> pb.DeleteOffsetsResponse:
        wanted = [TopicPartition(each.topic, each.partition) for each in request.partitions]
        try:
            reply = await _got(self._enter(context).groups.delete_offsets(request.group, wanted))
        except RequestError as error:
            return pb.DeleteOffsetsResponse(error=error_message(error))
        return pb.DeleteOffsetsResponse(
            partitions=[
                pb.DeletedOffset(
                    topic=tp.topic,
                    partition=tp.partition,
                    error=None if error is None else error_message(error),
                )
                for tp, error in zip(wanted, reply.errors, strict=True)
            ]
        )

    # ------------------------------------------------------------------ administration

    @guarded
    async def list_groups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:
        try:
            groups = self._enter(context).groups
            found = await stepped(
                self.scheduler, groups.list_groups(list(request.states), list(request.types))
            )
        except RequestError as error:
            return pb.ListGroupsResponse(error=error_message(error))
        response = pb.ListGroupsResponse()
        await filled(self.scheduler, response.groups, _listed, found)
        return response

    @guarded
    async def describe_groups(
        self, request: pb.DescribeGroupsRequest, context: Any
    ) -> pb.DescribeGroupsResponse:
        services = self._enter(context)
        response = pb.DescribeGroupsResponse()
        for number, group in enumerate(request.groups):
            if number:
                await next_slice(self.scheduler)
            answer = response.groups.add(group=group, coordinator_id=services.broker_id)
            try:
                found = await _got(services.groups.describe(group))
                answer.MergeFrom(_described(found))
                if found.state is messages.State.DEAD:
                    await _describe_consumers(services, group, answer)
            except RequestError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    @guarded
    async def describe_lag(self, request: pb.DescribeLagRequest, context: Any) -> pb.DescribeLagResponse:
        services = self._enter(context)
        try:
            reply = await _got(services.groups.fetch(request.group, None))
        except RequestError as error:
            return pb.DescribeLagResponse(error=error_message(error))
        committed = {each.tp: each.offset for each in reply.offsets if each.error is None}
        found = await services.lags.of(request.group, committed, request.topics)
        return pb.DescribeLagResponse(partitions=[_lagging(lag, services.lags.ms(lag)) for lag in found])

    @guarded
    async def delete_groups(self, request: pb.DeleteGroupsRequest, context: Any) -> pb.DeleteGroupsResponse:
        response = pb.DeleteGroupsResponse()
        for group in request.groups:
            answer = response.groups.add(group=group)
            try:
                await _got(self._enter(context).groups.delete(group))
            except RequestError as error:
                answer.error.CopyFrom(error_message(error))
        return response


def offset_to_commit(each: pb.OffsetToCommit) -> messages.OffsetToCommit:
    return messages.OffsetToCommit(
        TopicPartition(each.topic, each.partition), each.offset, each.leader_epoch, each.metadata
    )


def committed_offset(outcome: tuple[messages.OffsetToCommit, RequestError | None]) -> pb.CommittedOffset:
    offset, error = outcome
    return pb.CommittedOffset(
        topic=offset.tp.topic,
        partition=offset.tp.partition,
        error=None if error is None else error_message(error),
    )


def _fetched(each: messages.FetchedOffset) -> pb.FetchedOffset:
    return pb.FetchedOffset(
        topic=each.tp.topic,
        partition=each.tp.partition,
        error=None if each.error is None else error_message(each.error),
        offset=each.offset,
        leader_epoch=each.leader_epoch,
        metadata=each.metadata,
        commit_timestamp_ms=each.commit_timestamp_ms,
    )


def _listed(each: messages.ListedGroup) -> pb.ListedGroup:
    return pb.ListedGroup(
        group=each.group,
        protocol_type=each.protocol_type,
        state=each.state.value,
        group_type=each.type.value,
    )


def _find(services: GroupServices, key: str, kind: int) -> Maybe[BrokerImage]:
    if kind == pb.COORDINATOR_TYPE_TRANSACTION:
        return services.transactions.find_coordinator(key)
    if kind != pb.COORDINATOR_TYPE_GROUP:
        raise InvalidRequest(f"There are no coordinators of type {kind}.")
    return services.groups.find_coordinator(key)


async def _describe_consumers(services: GroupServices, group: str, answer: pb.DescribedGroup) -> None:
    """A group that is not classic may be broker-side; else it stays Dead."""
    try:
        found = await _got(services.groups.describe_consumers(group))
    except GroupIdNotFound:
        return
    answer.MergeFrom(consumer_groups.described(found, services.image.names_by_id))


def _described(found: messages.DescribedGroup) -> pb.DescribedGroup:
    return pb.DescribedGroup(
        state=found.state.value,
        protocol_type=found.protocol_type,
        protocol=found.protocol,
        leader_id=found.leader_id,
        generation=found.generation,
        group_type="" if found.state is messages.State.DEAD else messages.GroupType.CLASSIC.value,
        members=[
            pb.DescribedMember(
                member_id=m.member_id,
                group_instance_id=m.instance_id or "",
                client_id=m.client_id,
                client_host=m.client_host,
                metadata=m.metadata,
                assignment=m.assignment,
                session_timeout_ms=m.session_timeout_ms,
                rebalance_timeout_ms=m.rebalance_timeout_ms,
                protocols=m.protocols,
            )
            for m in found.members
        ],
    )


def _lagging(lag: Lag, ms: int | None) -> pb.LaggingPartition:
    return pb.LaggingPartition(
        topic=lag.tp.topic,
        partition=lag.tp.partition,
        committed=lag.committed,
        end=-1 if lag.behind is None else lag.behind.end,
        lag_ms=-1 if ms is None else ms,
    )


async def _got(reply: Maybe[T]) -> T:
    return await reply if isinstance(reply, Awaitable) else reply
