"""Consumer groups over gRPC: a member's whole life through the real listener and stub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from grpc import aio

from broker.group.group_driver import subscription
from broker.group.shard_groups import ShardGroups
from broker.unthrottled import unthrottled
from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge.grpc.server import GrpcEdge
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage
from ottla_broker.metrics import GrpcEdgeProbe
from ottla_core.pb import groups_pb2 as pb
from ottla_core.pb import groups_pb2_grpc


@pytest.fixture
async def stub() -> AsyncIterator[Any]:
    partitions = (PartitionImage((0,), leader=0, isr=(0,)),)
    topic = TopicImage("t", UUID(int=77), MappingProxyType({}), partitions)
    broker = BrokerImage(0, UUID(int=1), (Endpoint("grpc", "grpc", "broker.example", 9192),))
    image = ClusterImage(
        "cluster", brokers=MappingProxyType({0: broker}), topics=MappingProxyType({"t": topic})
    )
    services = SimpleNamespace(
        groups=ShardGroups(image),
        image=image,
        records=None,
        producing=None,
        broker_id=0,
        throttling=unthrottled(),
    )
    services.of = lambda caller: SimpleNamespace(**vars(services) | {"caller": caller})
    edge = GrpcEdge(cast(Any, services), GrpcEdgeConfig(), GrpcEdgeProbe())
    port = await edge.start("127.0.0.1", 0)
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield groups_pb2_grpc.GroupsStub(channel)  # type: ignore[no-untyped-call]
    await edge.stop(0.1)


def join(member_id: str = "", **more: Any) -> pb.JoinGroupRequest:
    fields = {
        "group": "g",
        "member_id": member_id,
        "client_id": "me",
        "protocols": [pb.GroupProtocol(name="range", metadata=subscription("t"))],
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        **more,
    }
    return pb.JoinGroupRequest(**fields)


async def test_a_members_life(stub: Any) -> None:
    (found,) = (await stub.FindCoordinator(pb.FindCoordinatorRequest(groups=["g"]))).coordinators
    assert (found.broker.host, found.broker.port, found.HasField("error")) == ("broker.example", 9192, False)
    told = await stub.Join(join())
    assert told.error.name == "MEMBER_ID_REQUIRED"
    member_id = told.member_id
    joined = await stub.Join(join(member_id))
    assert not joined.HasField("error"), joined.error
    assert (joined.generation, joined.leader_id, joined.protocol) == (1, member_id, "range")
    assert [m.metadata for m in joined.members] == [subscription("t")]
    synced = await stub.Sync(
        pb.SyncGroupRequest(
            group="g",
            generation=1,
            member_id=member_id,
            assignments=[pb.MemberAssignment(member_id=member_id, assignment=b"all")],
        )
    )
    assert (synced.assignment, synced.protocol) == (b"all", "range")
    beat = pb.GroupHeartbeatRequest(group="g", generation=1, member_id=member_id)
    assert not (await stub.Heartbeat(beat)).HasField("error")
    offset = pb.OffsetToCommit(topic="t", partition=0, offset=5, leader_epoch=-1, metadata="so far")
    lost = pb.OffsetToCommit(topic="nowhere", partition=0, offset=5)
    committed = await stub.CommitOffsets(
        pb.CommitOffsetsRequest(group="g", generation=1, member_id=member_id, offsets=[offset, lost])
    )
    assert [p.error.name for p in committed.partitions] == ["", "UNKNOWN_TOPIC_OR_PARTITION"]
    (described,) = (await stub.DescribeGroups(pb.DescribeGroupsRequest(groups=["g"]))).groups
    assert (described.state, described.generation, described.coordinator_id) == ("Stable", 1, 0)
    assert [(m.client_id, m.client_host, m.assignment) for m in described.members] == [
        ("me", "/127.0.0.1", b"all")
    ]
    left = await stub.Leave(pb.LeaveGroupRequest(group="g", members=[pb.LeavingMember(member_id=member_id)]))
    assert [m.error.name for m in left.members] == [""]
    assert (await stub.Heartbeat(beat)).error.name == "UNKNOWN_MEMBER_ID"


async def test_offsets_from_outside(stub: Any) -> None:
    offsets = [pb.OffsetToCommit(topic="t", partition=0, offset=5, leader_epoch=-1)]
    answer = await stub.CommitOffsets(pb.CommitOffsetsRequest(group="g", offsets=offsets))
    assert not answer.HasField("error"), answer.error
    asked = [pb.GroupPartition(topic="t", partition=p) for p in (0, 3)]
    fetched = await stub.FetchOffsets(pb.FetchOffsetsRequest(group="g", partitions=asked))
    assert [(o.partition, o.offset) for o in fetched.offsets] == [(0, 5), (3, -1)]
    everything = await stub.FetchOffsets(pb.FetchOffsetsRequest(group="g"))
    assert [(o.topic, o.offset, o.leader_epoch) for o in everything.offsets] == [("t", 5, -1)]
    (listed,) = (await stub.ListGroups(pb.ListGroupsRequest(states=["Empty"]))).groups
    assert (listed.group, listed.state) == ("g", "Empty")
    gone = await stub.DeleteOffsets(pb.DeleteOffsetsRequest(group="g", partitions=asked[:1]))
    assert [p.error.name for p in gone.partitions] == [""]
    deleted = await stub.DeleteGroups(pb.DeleteGroupsRequest(groups=["g", "nobody"]))
    assert [g.error.name for g in deleted.groups] == ["", "GROUP_ID_NOT_FOUND"]


async def test_refusals_have_a_name_and_a_sentence(stub: Any) -> None:
    refused = await stub.Join(join(session_timeout_ms=1))
    assert (refused.error.name, refused.generation) == ("INVALID_SESSION_TIMEOUT", -1)
    assert "6000" in refused.error.message
    outcome = await stub.Sync(pb.SyncGroupRequest(group="nobody", generation=1, member_id="m"))
    assert outcome.error.name == "UNKNOWN_MEMBER_ID"
    missing = await stub.DeleteOffsets(pb.DeleteOffsetsRequest(group="nobody"))
    assert missing.error.name == "GROUP_ID_NOT_FOUND"


async def test_a_cancelled_join_affects_no_other_member(stub: Any) -> None:
    first = (await stub.Join(join())).member_id
    await stub.Join(join(first))
    second = (await stub.Join(join())).member_id
    with pytest.raises(aio.AioRpcError):
        await stub.Join(join(second), timeout=0.2)
    again = asyncio.create_task(_join(stub, second))
    await asyncio.sleep(0.05)
    assert (await stub.Join(join(first))).generation == 2
    assert (await again).generation == 2


async def _join(stub: Any, member_id: str) -> Any:
    return await stub.Join(join(member_id))
