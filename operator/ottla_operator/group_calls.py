"""Consumer groups over gRPC: find the coordinator, ask it, commit for a group without members. [A]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpc import aio

from ottla_client.connection import Connections, told, translated
from ottla_client.errors import CannotConnect
from ottla_client.group_protocol import Undecodable, decode_assignment
from ottla_core.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, RequestError
from ottla_core.pb import groups_pb2 as pb
from ottla_core.pb import groups_pb2_grpc
from ottla_core.real.clock import RealClock
from ottla_operator.group_plan import Partition, SeenGroup, SeenMember

#: A coordinator loads in well under a second; longer is a matter for the next look.
_PATIENCE_S = 5.0
_PAUSE_S = 0.2


class GroupCalls:
    """The `Groups` service of one cluster."""

    def __init__(self, bootstrap: Sequence[str], timeout_s: float) -> None:
        self._clock = RealClock()
        self._bootstrap = list(bootstrap)
        self._timeout_s = timeout_s
        self._connections = Connections()

    async def close(self) -> None:
        await self._connections.close()

    async def describe(self, group: str) -> SeenGroup:
        """State and members; neither committed offsets nor ends."""
        request = pb.DescribeGroupsRequest(groups=[group])
        found = (await self._ask_coordinator(group, "DescribeGroups", request, lambda a: a.groups[0])).groups[
            0
        ]
        return SeenGroup(
            group,
            found.state,
            found.protocol,
            found.generation,
            found.coordinator_id,
            tuple(
                SeenMember(
                    each.member_id,
                    each.group_instance_id,
                    each.client_id,
                    each.client_host,
                    each.session_timeout_ms,
                    each.rebalance_timeout_ms,
                    _partitions_in(each.assignment),
                )
                for each in found.members
            ),
        )

    async def committed(self, group: str) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Offsets, and when each was committed."""
        answer = await self._ask_coordinator(group, "FetchOffsets", pb.FetchOffsetsRequest(group=group))
        found = {(each.topic, each.partition): each for each in answer.offsets if each.offset >= 0}
        return (
            {tp: each.offset for tp, each in found.items()},
            {tp: each.commit_timestamp_ms for tp, each in found.items()},
        )

    async def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """From outside of the group: refused by its coordinator while it has members."""
        request = pb.CommitOffsetsRequest(group=group, generation=-1)
        for (topic, partition), offset in offsets.items():
            request.offsets.add(topic=topic, partition=partition, offset=offset, leader_epoch=-1)
        answer = await self._ask_coordinator(group, "CommitOffsets", request)
        for each in answer.partitions:
            _raise(each)

    async def _ask_coordinator(
        self, group: str, method: str, request: Any, outcome: Callable[[Any], Any] = lambda answer: answer
    ) -> Any:
        """The answer of the group's coordinator. One that is just moving or loading gets a moment: it has done
        nothing yet, so that asking again is safe even for a commit."""
        deadline = self._clock.monotonic() + _PATIENCE_S
        while True:
            try:
                answer = await self._ask(await self._coordinator(group), method, request)
                _raise(outcome(answer))
                return answer
            except (NotCoordinator, CoordinatorLoadInProgress, CoordinatorNotAvailable):
                if self._clock.monotonic() > deadline:
                    raise
            await self._clock.sleep(_PAUSE_S)

    async def _coordinator(self, group: str) -> str:
        failure: Exception = CannotConnect("There is no address to ask.")
        for address in self._bootstrap:
            try:
                answer = await self._ask(
                    address, "FindCoordinator", pb.FindCoordinatorRequest(groups=[group])
                )
            except CannotConnect as failed:
                failure = failed
                continue
            found = answer.coordinators[0]
            _raise(found)
            host = f"[{found.broker.host}]" if ":" in found.broker.host else found.broker.host
            return f"{host}:{found.broker.port}"
        raise failure

    async def _ask(self, address: str, method: str, request: Any) -> Any:
        channel = self._connections.broker(address).channel
        stub: Any = groups_pb2_grpc.GroupsStub(channel)  # type: ignore[no-untyped-call]
        try:
            return await getattr(stub, method)(request, timeout=self._timeout_s)
        except aio.AioRpcError as failed:
            raise translated(failed, address) from None


def _raise(outcome: Any) -> None:
    if outcome.HasField("error"):
        error: RequestError = told(outcome.error)
        raise error


def _partitions_in(assignment: bytes) -> tuple[Partition, ...]:
    """Brokers pass these bytes on unread; a group whose members speak something else shows no partitions."""
    try:
        return tuple((tp.topic, tp.partition) for tp in decode_assignment(assignment))
    except Undecodable:
        return ()
