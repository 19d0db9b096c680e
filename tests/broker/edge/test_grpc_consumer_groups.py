"""Broker-side groups over gRPC: a member's whole life through the real listener and stub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from grpc import aio

from broker.group.shard_groups import ShardGroups
from broker.unthrottled import unthrottled
from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge.grpc.server import GrpcEdge
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage
from ottla_broker.metrics import GrpcEdgeProbe
from ottla_core.pb import groups_pb2 as pb
from ottla_core.pb import groups_pb2_grpc

TOPIC_ID = UUID(int=77)


@pytest.fixture
async def stub() -> AsyncIterator[Any]:
    partitions = (PartitionImage((0,), leader=0, isr=(0,)),) * 2
    topic = TopicImage("t", TOPIC_ID, MappingProxyType({}), partitions)
    broker = BrokerImage(0, UUID(int=1), (Endpoint("grpc", "grpc", "broker.example", 9192),))
    image = ClusterImage(
        "cluster",
        brokers=MappingProxyType({0: broker}),
        topics=MappingProxyType({"t": topic}),
        names_by_id=MappingProxyType({TOPIC_ID: "t"}),
    )
    groups = ShardGroups(image)
    groups._shard.consumers.image = image
    services = SimpleNamespace(
        groups=groups, image=image, records=None, producing=None, broker_id=0, throttling=unthrottled()
    )
    services.of = lambda caller: SimpleNamespace(**vars(services) | {"caller": caller})
    edge = GrpcEdge(cast(Any, services), GrpcEdgeConfig(), GrpcEdgeProbe())
    port = await edge.start("127.0.0.1", 0)
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield groups_pb2_grpc.GroupsStub(channel)  # type: ignore[no-untyped-call]
    await edge.stop(0.1)


def joining(member_id: str, **more: Any) -> pb.ConsumerHeartbeatRequest:
    fields = {
        "group": "g",
        "member_id": member_id,
        "client_id": "me",
        "rebalance_timeout_ms": 10_000,
        "topics": pb.TopicNames(names=["t"]),
        "owned": pb.AssignedTopics(),
        **more,
    }
    return pb.ConsumerHeartbeatRequest(**fields)


def owning(member_id: str, epoch: int, *partitions: int) -> pb.ConsumerHeartbeatRequest:
    topics = [pb.AssignedTopic(topic_id=str(TOPIC_ID), partitions=partitions)]
    return pb.ConsumerHeartbeatRequest(
        group="g", member_id=member_id, member_epoch=epoch, owned=pb.AssignedTopics(topics=topics)
    )


def partitions(answer: pb.ConsumerHeartbeatResponse) -> list[tuple[str, list[int]]]:
    assert not answer.HasField("error"), answer.error
    return [(each.topic, list(each.partitions)) for each in answer.assignment.topics]


async def described(stub: Any) -> pb.DescribedGroup:
    (found,) = (await stub.DescribeGroups(pb.DescribeGroupsRequest(groups=["g"]))).groups
    return cast(pb.DescribedGroup, found)


async def test_partitions_move_from_one_member_to_another(stub: Any) -> None:
    first = await stub.ConsumerHeartbeat(joining("a"))
    assert (first.member_id, first.member_epoch, first.heartbeat_interval_ms) == ("a", 1, 500)
    assert partitions(first) == [("t", [0, 1])]
    second = await stub.ConsumerHeartbeat(joining("b"))
    assert partitions(second) == []
    assert second.HasField("assignment"), "an empty assignment is not the same as an unchanged one"
    revoking = await stub.ConsumerHeartbeat(owning("a", 1, 0, 1))
    ((topic, kept),) = partitions(revoking)
    assert (topic, len(kept), revoking.member_epoch) == ("t", 1, 1)
    found = await described(stub)
    assert (found.state, found.group_type, found.protocol) == ("Reconciling", "consumer", "uniform")
    assert (found.generation, found.assignment_epoch) == (2, 2)
    assert {m.member_id: (len(m.current), len(m.target)) for m in found.members} == {"a": (1, 1), "b": (0, 1)}
    done = await stub.ConsumerHeartbeat(owning("a", 1, *kept))
    assert (done.member_epoch, done.HasField("assignment")) == (2, False)
    moved = await stub.ConsumerHeartbeat(owning("b", 2))
    assert sorted([*kept, *partitions(moved)[0][1]]) == [0, 1]
    found = await described(stub)
    assert (found.state, [m.client_host for m in found.members]) == ("Stable", ["/127.0.0.1"] * 2)
    (listed,) = (await stub.ListGroups(pb.ListGroupsRequest(types=["consumer"]))).groups
    assert (listed.group, listed.group_type) == ("g", "consumer")
    assert not (await stub.ListGroups(pb.ListGroupsRequest(types=["classic"]))).groups


async def test_offsets_are_fenced_by_the_member_epoch(stub: Any) -> None:
    epoch = (await stub.ConsumerHeartbeat(joining("a"))).member_epoch
    offset = pb.OffsetToCommit(topic="t", partition=0, offset=5, leader_epoch=-1)

    async def commit(member_id: str, epoch: int) -> str:
        request = pb.CommitOffsetsRequest(group="g", generation=epoch, member_id=member_id, offsets=[offset])
        return str((await stub.CommitOffsets(request)).error.name)

    async def fetch(member_id: str, epoch: int) -> pb.FetchOffsetsResponse:
        request = pb.FetchOffsetsRequest(group="g", generation=epoch, member_id=member_id)
        return cast(pb.FetchOffsetsResponse, await stub.FetchOffsets(request))

    assert await commit("a", epoch) == ""
    assert await commit("a", epoch - 1) == "STALE_MEMBER_EPOCH"
    assert await commit("b", epoch) == "UNKNOWN_MEMBER_ID"
    assert await commit("", -1) == "UNKNOWN_MEMBER_ID"
    assert [o.offset for o in (await fetch("a", epoch)).offsets] == [5]
    assert (await fetch("a", epoch + 1)).error.name == "STALE_MEMBER_EPOCH"
    assert [o.offset for o in (await fetch("", -1)).offsets] == [5]


async def test_offsets_of_partitions_that_a_member_keeps_are_committed_with_its_earlier_epoch(
    stub: Any,
) -> None:
    await stub.ConsumerHeartbeat(joining("a"))
    await stub.ConsumerHeartbeat(joining("b"))
    ((_, kept),) = partitions(await stub.ConsumerHeartbeat(owning("a", 1, 0, 1)))
    assert (await stub.ConsumerHeartbeat(owning("a", 1, *kept))).member_epoch == 2

    async def commit(partition: int) -> str:
        offset = pb.OffsetToCommit(topic="t", partition=partition, offset=5, leader_epoch=-1)
        request = pb.CommitOffsetsRequest(group="g", generation=1, member_id="a", offsets=[offset])
        return str((await stub.CommitOffsets(request)).error.name)

    assert {each: await commit(each) for each in (0, 1)} == {kept[0]: "", 1 - kept[0]: "STALE_MEMBER_EPOCH"}


async def test_leaving_fencing_and_refusals(stub: Any) -> None:
    def leaving(epoch: int) -> pb.ConsumerHeartbeatRequest:
        return pb.ConsumerHeartbeatRequest(
            group="g", member_id="a", member_epoch=epoch, group_instance_id="one"
        )

    await stub.ConsumerHeartbeat(joining("a", group_instance_id="one"))
    taken = await stub.ConsumerHeartbeat(joining("b", group_instance_id="one"))
    assert taken.error.name == "UNRELEASED_INSTANCE_ID"
    assert not (await stub.ConsumerHeartbeat(leaving(-2))).HasField("error")
    back = await stub.ConsumerHeartbeat(joining("b", group_instance_id="one"))
    assert partitions(back) == [("t", [0, 1])]
    assert (await stub.ConsumerHeartbeat(leaving(-1))).error.name == "FENCED_INSTANCE_ID"
    assert (await stub.ConsumerHeartbeat(owning("b", 7))).error.name == "FENCED_MEMBER_EPOCH"
    wrong = await stub.ConsumerHeartbeat(joining("c", assignor="none-such"))
    assert (wrong.error.name, "uniform" in wrong.error.message) == ("UNSUPPORTED_ASSIGNOR", True)
    regex = await stub.ConsumerHeartbeat(joining("c", topic_regex="("))
    assert regex.error.name == "INVALID_REGULAR_EXPRESSION"
    bad = pb.AssignedTopics(topics=[pb.AssignedTopic(topic_id="t", partitions=[0])])
    refused = await stub.ConsumerHeartbeat(joining("b", member_epoch=1, owned=bad))
    assert (refused.error.name, "topic id" in refused.error.message) == ("INVALID_REQUEST", True)
    classic = await stub.Join(
        pb.JoinGroupRequest(
            group="g",
            protocols=[pb.GroupProtocol(name="range")],
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
        )
    )
    assert classic.error.name == "INCONSISTENT_GROUP_PROTOCOL"


async def test_a_regular_expression_is_matched_by_the_broker(stub: Any) -> None:
    request = joining("", topic_regex="t|u")
    request.ClearField("topics")
    joined = await stub.ConsumerHeartbeat(request)
    assert partitions(joined) == [("t", [0, 1])]
    assert joined.member_id, "the broker made one"
