"""Handlers of consumer groups in all their versions, over a real shard of groups."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.group.group_driver import subscription
from broker.group.shard_groups import ShardGroups
from ottla_broker.edge.kafka import codec, registry, schema
from ottla_broker.edge.kafka.decode import compile_reader
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.request import Context, Request
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.event_loop import in_turns
from ottla_broker.group.messages import CommitReply, FetchReply
from ottla_broker.group.records import OffsetValue
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage
from ottla_broker.service.access import FULL
from ottla_broker.steps import Steps
from ottla_core.errors import UnknownMemberId
from ottla_core.ids import TopicPartition

TOPIC_ID = UUID(int=77)
UNKNOWN_ID = UUID(int=78)
NOT_FOUND = 69
UNKNOWN_MEMBER = 25
ID_REQUIRED = 79


def versions(key: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(APIS[key].low, APIS[key].high + 1))


class Edge:
    """One connection: fields in, fields out, each by its version's schema."""

    def __init__(self) -> None:
        partitions = tuple(PartitionImage((0,), leader=0, isr=(0,)) for _ in range(2))
        topic = TopicImage("t", TOPIC_ID, MappingProxyType({}), partitions)
        endpoint = Endpoint("kafka", "kafka", "broker.example", 9092)
        image = ClusterImage(
            "cluster",
            brokers=MappingProxyType({0: BrokerImage(0, UUID(int=1), (endpoint,))}),
            topics=MappingProxyType({"t": topic}),
            names_by_id=MappingProxyType({TOPIC_ID: "t"}),
        )
        services = SimpleNamespace(groups=ShardGroups(image), image=image, access=FULL)
        self.errors: list[str] = []
        self.context = Context(
            services=cast(Any, services),
            config=cast(Any, SimpleNamespace(listener=SimpleNamespace(name="kafka"))),
            memory=cast(Any, None),
            metadata_cache=cast(Any, None),
            errors=cast(Any, SimpleNamespace(add=self.errors.append)),
            peer="10.0.0.7:50000",
        )

    async def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        api = APIS[key]
        body = bytearray()
        compile_writer(schema.load(api, version, "request"))(body, fields)
        reply = registry.entry(key).handle(self.context, Request(api, version, 1, "me", memoryview(body)))
        while inspect.isawaitable(reply) or inspect.isgenerator(reply):
            reply = await asyncio.wait_for(reply if inspect.isawaitable(reply) else in_turns(reply), 5)
        assert isinstance(reply, Mapping)
        answer = codec.encode_response(api, version, reply)
        return compile_reader(schema.load(api, version, "response"))(memoryview(answer))

    async def join(self, version: int = 9, member_id: str = "", **more: Any) -> Any:
        fields = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription("t")}],
            **more,
        }
        answer = await self.ask(11, version, **fields)
        if answer["error_code"] == ID_REQUIRED:
            return await self.join(version, answer["member_id"], **more)
        return answer

    async def member(self, version: int = 5, join_version: int = 9) -> str:
        """A stable group of one."""
        joined = await self.join(join_version)
        member_id: str = joined["member_id"]
        synced = await self.ask(
            14,
            version,
            group_id="g",
            generation_id=joined["generation_id"],
            member_id=member_id,
            assignments=[{"member_id": member_id, "assignment": b"everything"}],
        )
        assert synced["error_code"] == 0
        assert synced["assignment"] == b"everything"
        if version >= 5:
            assert (synced["protocol_type"], synced["protocol_name"]) == ("consumer", "range")
        return member_id


@versions(11)
async def test_join(version: int) -> None:
    edge = Edge()
    joined = await edge.join(version)
    assert (joined["error_code"], joined["generation_id"]) == (0, 1)
    assert joined["leader"] == joined["member_id"]
    assert joined["member_id"].startswith("me-")
    assert joined["protocol_name"] == "range"
    assert [m["metadata"] for m in joined["members"]] == [subscription("t")]
    assert ("MEMBER_ID_REQUIRED" in edge.errors) == (version >= 4)
    if version >= 7:
        assert joined["protocol_type"] == "consumer"


@versions(11)
async def test_join_refused(version: int) -> None:
    edge = Edge()
    for wrong, code in (({"group_id": ""}, 24), ({"session_timeout": 1}, 26), ({"protocols": []}, 23)):
        answer = await edge.join(version, **wrong)
        assert (answer["error_code"], answer["member_id"], answer["generation_id"]) == (code, "", -1)
        assert answer["protocol_name"] == (None if version >= 7 else "")
    assert (await edge.join(version, "stranger"))["error_code"] == UNKNOWN_MEMBER


@versions(14)
async def test_sync(version: int) -> None:
    edge = Edge()
    await edge.member(version)
    wrong = {"group_id": "g", "generation_id": 9, "assignments": []}
    assert (await edge.ask(14, version, member_id="stranger", **wrong))["error_code"] == UNKNOWN_MEMBER


@versions(12)
async def test_heartbeat(version: int) -> None:
    edge = Edge()
    member_id = await edge.member()
    beat = {"group_id": "g", "member_id": member_id}
    assert (await edge.ask(12, version, generation_id=1, **beat))["error_code"] == 0
    assert (await edge.ask(12, version, generation_id=2, **beat))["error_code"] == 22


@versions(13)
async def test_leave(version: int) -> None:
    edge = Edge()
    member_id = await edge.member()
    if version < 3:
        assert (await edge.ask(13, version, group_id="g", member_id=member_id))["error_code"] == 0
        again = await edge.ask(13, version, group_id="g", member_id=member_id)
        assert again["error_code"] == UNKNOWN_MEMBER
    else:
        members = [{"member_id": each, "group_instance_id": None} for each in (member_id, "stranger")]
        answer = await edge.ask(13, version, group_id="g", members=members)
        assert answer["error_code"] == 0
        assert [(m["member_id"], m["error_code"]) for m in answer["members"]] == [
            (member_id, 0),
            ("stranger", UNKNOWN_MEMBER),
        ]


async def commit(edge: Edge, version: int, **more: Any) -> Any:
    def partition(index: int) -> dict[str, Any]:
        return {
            "partition_index": index,
            "committed_offset": 40 + index,
            "committed_leader_epoch": 3,
            "committed_metadata": "note" if index else None,
        }

    known = {"topic_id": TOPIC_ID} if version >= 10 else {"name": "t"}
    unknown = {"topic_id": UNKNOWN_ID} if version >= 10 else {"name": "nowhere"}
    topics = [
        unknown | {"partitions": [partition(0)]},
        known | {"partitions": [partition(0), partition(1), partition(2)]},
    ]
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics, **more}
    return await edge.ask(8, version, **fields)


@versions(8)
async def test_commit(version: int) -> None:
    edge = Edge()
    answer = await commit(edge, version)
    unknown, known = answer["topics"]
    assert [p["error_code"] for p in unknown["partitions"]] == [100 if version >= 10 else 3]
    assert [(p["partition_index"], p["error_code"]) for p in known["partitions"]] == [(0, 0), (1, 0), (2, 3)]
    assert known.get("name", "t") == "t"
    refused = await commit(edge, version, generation_id_or_member_epoch=4, member_id="stranger")
    assert [p["error_code"] for p in refused["topics"][1]["partitions"]] == [UNKNOWN_MEMBER] * 3


@versions(9)
async def test_fetch(version: int) -> None:
    edge = Edge()
    await commit(edge, 9)
    by_id = version >= 10
    topics = [{"partition_indexes": [1, 0, 7]} | ({"topic_id": TOPIC_ID} if by_id else {"name": "t"})]
    if by_id:
        topics.append({"topic_id": UNKNOWN_ID, "partition_indexes": [0]})
    for asked in (topics, None) if version >= 2 else (topics,):
        if version >= 8:
            groups = [{"group_id": "g", "topics": asked}, {"group_id": "other", "topics": asked}]
            answer, other = (await edge.ask(9, version, groups=groups))["groups"]
            assert other["error_code"] == 0
            assert all(p["committed_offset"] == -1 for t in other["topics"] for p in t["partitions"])
        else:
            answer = await edge.ask(9, version, group_id="g", topics=asked)
        assert answer.get("error_code", 0) == 0
        first = answer["topics"][0]
        found = {p["partition_index"]: (p["committed_offset"], p["metadata"]) for p in first["partitions"]}
        nothing = {7: (-1, "")} if asked is not None else {}
        assert found == {0: (40, ""), 1: (41, "note")} | nothing
        assert first.get("topic_id", TOPIC_ID) == TOPIC_ID
        if version >= 5:
            epochs = {p["partition_index"]: p["committed_leader_epoch"] for p in first["partitions"]}
            assert epochs[0] == 3
        if by_id and asked is not None:
            assert [p["error_code"] for p in answer["topics"][1]["partitions"]] == [100]


@versions(15)
async def test_describe(version: int) -> None:
    edge = Edge()
    member_id = await edge.member()
    asked = {"groups": ["g", "nobody"], "include_authorized_operations": True}
    found, missing = (await edge.ask(15, version, **asked))["groups"]
    assert (found["error_code"], found["group_state"], found["protocol_data"]) == (0, "Stable", "range")
    (member,) = found["members"]
    assert (member["member_id"], member["client_id"], member["client_host"]) == (member_id, "me", "/10.0.0.7")
    assert member["member_assignment"] == b"everything"
    assert missing["group_state"] == "Dead"
    assert missing["error_code"] == (NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        assert found["authorized_operations"] > 0


@versions(16)
async def test_list(version: int) -> None:
    edge = Edge()
    await edge.member()
    await commit(edge, 9, group_id="simple")
    answer = await edge.ask(16, version)
    listed = {g["group_id"]: g["protocol_type"] for g in answer["groups"]}
    assert (answer["error_code"], listed) == (0, {"g": "consumer", "simple": ""})
    if version >= 4:
        stable = await edge.ask(16, version, states_filter=["Stable"])
        assert [(g["group_id"], g["group_state"]) for g in stable["groups"]] == [("g", "Stable")]
    if version >= 5:
        assert {g["group_type"] for g in answer["groups"]} == {"classic"}
        assert (await edge.ask(16, version, types_filter=["consumer"]))["groups"] == []


@versions(42)
async def test_delete_groups(version: int) -> None:
    edge = Edge()
    await edge.member()
    await commit(edge, 9, group_id="simple")
    answer = await edge.ask(42, version, groups_names=["g", "simple", "nobody"])
    codes = {r["group_id"]: r["error_code"] for r in answer["results"]}
    assert codes == {"g": 68, "simple": 0, "nobody": NOT_FOUND}


async def test_delete_offsets() -> None:
    edge = Edge()
    await commit(edge, 9)
    topics = [
        {"name": "nowhere", "partitions": [{"partition_index": 0}]},
        {"name": "t", "partitions": [{"partition_index": 99}, {"partition_index": 0}]},
    ]
    answer = await edge.ask(47, 0, group_id="g", topics=topics)
    assert answer["error_code"] == 0
    assert [p["error_code"] for t in answer["topics"] for p in t["partitions"]] == [3, 3, 0]
    assert (await edge.ask(47, 0, group_id="nobody", topics=topics))["error_code"] == NOT_FOUND
    await edge.member()
    answer = await edge.ask(47, 0, group_id="g", topics=topics)
    assert [p["error_code"] for t in answer["topics"] for p in t["partitions"]] == [3, 3, 86]


@versions(10)
async def test_find_coordinator_tells_the_listener_asked(version: int) -> None:
    edge = Edge()
    if version >= 4:
        answer = await edge.ask(10, version, key_type=0, coordinator_keys=["g", ""])
        found, refused = answer["coordinators"]
        assert refused["error_code"] == 24
    else:
        found = await edge.ask(10, version, key="g")
    assert (found["error_code"], found["node_id"]) == (0, 0)
    assert (found["host"], found["port"]) == ("broker.example", 9092)


class LateGroups:
    """Answers when told to: an offset per partition asked for, or a refusal of each."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def fetch(self, group: str, partitions: list[TopicPartition], **more: Any) -> FetchReply:
        await self.go_on.wait()
        return FetchReply(partitions, {tp: OffsetValue(len(tp.topic), -1, "", 0) for tp in partitions})

    def commit_in_steps(self, group: str, *asked: Any, **more: Any) -> Steps[Awaitable[CommitReply]]:
        yield None
        return self._commit(*asked)

    async def _commit(self, *asked: Any) -> CommitReply:
        await self.go_on.wait()
        errors = [UnknownMemberId() if each.tp.topic == "gone" else None for each in asked[-1]]
        return CommitReply(tuple(errors))


async def while_a_topic_goes(key: int, **fields: Any) -> Any:
    """The answer to a request that names two topics by id, of which the first is deleted before it is answered."""
    edge, late, gone = Edge(), LateGroups(), UUID(int=76)
    edge.context.services = services = SimpleNamespace(
        groups=late, image=SimpleNamespace(names_by_id={gone: "gone", TOPIC_ID: "t"})
    )
    partitions = (
        {"partition_indexes": [0]} if key == 9 else {"partitions": [{"partition_index": 0, **fields}]}
    )
    topics = [{"topic_id": topic_id, **partitions} for topic_id in (gone, TOPIC_ID)]
    asked: dict[str, Any] = {"group_id": "g", "member_id": "", "topics": topics}
    if key == 9:
        asked = {"groups": [asked | {"member_id": None, "member_epoch": -1}], "require_stable": False}
    else:
        asked |= {"generation_id_or_member_epoch": -1}
    answering = asyncio.ensure_future(edge.ask(key, 10, **asked))
    await asyncio.sleep(0)
    services.image = SimpleNamespace(names_by_id={TOPIC_ID: "t"})
    late.go_on.set()
    return await answering


async def test_offsets_are_those_of_their_topic_though_another_goes_meanwhile() -> None:
    answer = await while_a_topic_goes(9)
    found = {t["topic_id"]: t["partitions"][0]["committed_offset"] for t in answer["groups"][0]["topics"]}
    assert found == {UUID(int=76): len("gone"), TOPIC_ID: len("t")}


async def test_commits_are_answered_for_their_topic_though_another_goes_meanwhile() -> None:
    answer = await while_a_topic_goes(8, committed_offset=5, committed_leader_epoch=-1, committed_metadata="")
    codes = {t["topic_id"]: t["partitions"][0]["error_code"] for t in answer["topics"]}
    assert codes == {UUID(int=76): UNKNOWN_MEMBER, TOPIC_ID: 0}
