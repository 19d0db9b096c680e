"""Requests over thousands of partitions, groups and settings are handled and encoded in short slices.

Work is counted in calls of functions, which do not depend on how busy the machine is. A call takes some 0.1 to 0.3 µs.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from broker.edge.test_kafka_group_handlers import TOPIC_ID, Edge
from broker.group.shard_groups import ShardGroups
from broker.unthrottled import unthrottled
from ottla_broker.caller import BROKER
from ottla_broker.config import BrokerConfig, KafkaEdgeConfig
from ottla_broker.edge.kafka import codec, registry, schema
from ottla_broker.edge.kafka.decode import compile_reader
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.metadata_cache import MetadataCache
from ottla_broker.edge.kafka.request import Encoded, Request
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.edge.memory import Memory
from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_broker.requests import Fetched, FetchWant, FoundOffset
from ottla_broker.service.access import FULL
from ottla_broker.service.configs import ConfigService
from ottla_broker.steps import PARTITIONS_PER_STEP
from ottla_core.ids import TopicPartition

PARTITIONS = 5000
#: About a millisecond.
CALLS_PER_SLICE_MAX = 5_000
#: In one piece, each of these requests is a multiple of this.
CALLS_MIN = 3 * CALLS_PER_SLICE_MAX

T = TypeVar("T")


class Slices:
    """Counts the calls within each slice."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def run(self, work: Callable[[], T]) -> T:
        self.calls.append(0)
        sys.setprofile(self._called)
        try:
            return work()
        finally:
            sys.setprofile(None)

    def _called(self, frame: Any, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            self.calls[-1] += 1

    async def result(self, made: Any) -> Any:
        """Every slice, as a connection drives them."""
        while inspect.isawaitable(made) or inspect.isgenerator(made):
            if inspect.isawaitable(made):
                made = await made
                continue
            steps = made
            try:
                pause = self.run(lambda steps=steps: next(steps))
            except StopIteration as last:
                made = last.value
                continue
            if pause is not None:
                await asyncio.wait((asyncio.ensure_future(pause),))
        return made


def edge_with(partitions: int, topics: int = 1) -> Edge:
    edge = Edge()
    before = edge.context.services.image
    each = tuple(PartitionImage((0,), leader=0, isr=(0,)) for _ in range(partitions))
    names = ["t", *(f"t{n}" for n in range(1, topics))]
    image = ClusterImage(
        "cluster",
        brokers=before.brokers,
        topics=MappingProxyType({n: TopicImage(n, TOPIC_ID, MappingProxyType({}), each) for n in names}),
        names_by_id=before.names_by_id,
    )
    metadata = cast(Any, SimpleNamespace(image=image))
    services = SimpleNamespace(
        groups=ShardGroups(image),
        image=image,
        configs=ConfigService(BrokerConfig(), metadata, cast(Any, None)),
        records=SimpleNamespace(list_offset=_number_as_offset, fetch_in_steps=_offset_as_mark),
        throttling=unthrottled(),
        caller=BROKER,
        topics=SimpleNamespace(settling=lambda opened_at: None, ensure=_nothing_created),
        access=FULL,
    )
    edge.context.services = cast(Any, services)
    edge.context.config = KafkaEdgeConfig()
    edge.context.memory = Memory(1 << 26)
    edge.context.metadata_cache = MetadataCache("PLAINTEXT", lambda: 0.0)
    return edge


def _number_as_offset(tp: TopicPartition, *_: Any, **__: Any) -> FoundOffset:
    return FoundOffset(tp.partition, -1, 0)


def _offset_as_mark(wants: Sequence[FetchWant], **_: Any) -> Any:
    found = []
    for want in wants:
        found.append(Fetched(want.tp, None, high_watermark=want.offset))
        if len(found) % PARTITIONS_PER_STEP == 0:
            yield
    return found


async def _nothing_created(names: list[str]) -> None:
    return None


async def answer(edge: Edge, key: int, version: int, **fields: Any) -> tuple[Any, list[int]]:
    """The response, and the calls of each slice."""
    api, body = APIS[key], bytearray()
    compile_writer(schema.load(api, version, "request"))(body, fields)
    request = Request(api, version, 1, "me", memoryview(body))
    codec.begin_response(api, version, {})  # compiles the codecs
    codec.decode_in_steps(api, version, memoryview(body))
    handle, slices = registry.entry(key).handle, Slices()
    reply = await slices.result(slices.run(lambda: handle(edge.context, request)))
    if isinstance(reply, Encoded):
        encoded: Any = b"".join(reply.body)
    else:
        encoded = await slices.result(slices.run(lambda: codec.begin_response(api, version, reply)))
    return compile_reader(schema.load(api, version, "response"))(memoryview(encoded)), slices.calls


def commit(count: int) -> dict[str, Any]:
    partitions = [
        {"partition_index": n, "committed_offset": n, "committed_leader_epoch": 1, "committed_metadata": "m"}
        for n in range(count)
    ]
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "t", "partitions": partitions}],
    }


def fetch(indexes: list[int] | None, count: int = 1) -> dict[str, Any]:
    topics = None if indexes is None else [{"name": "t", "partition_indexes": indexes}]
    group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": topics}
    return {"groups": [group] * count, "require_stable": True}


def check(calls: list[int]) -> None:
    assert sum(calls) > CALLS_MIN
    assert max(calls) <= CALLS_PER_SLICE_MAX, sorted(calls)[-5:]


async def test_offset_commit_and_fetch() -> None:
    edge = edge_with(PARTITIONS)
    committed, calls = await answer(edge, 8, 9, **commit(PARTITIONS))
    (topic,) = committed["topics"]
    assert [(p["partition_index"], p["error_code"]) for p in topic["partitions"]] == [
        (n, 0) for n in range(PARTITIONS)
    ]
    check(calls)
    for wanted in (list(range(PARTITIONS)), None):
        fetched, calls = await answer(edge, 9, 9, **fetch(wanted))
        (topic,) = fetched["groups"][0]["topics"]
        assert [
            (p["partition_index"], p["committed_offset"], p["metadata"]) for p in topic["partitions"]
        ] == [(n, n, "m") for n in range(PARTITIONS)]
        check(calls)


async def test_offsets_of_many_groups() -> None:
    fetched, calls = await answer(edge_with(10), 9, 9, **fetch([1], 3000))
    assert len(fetched["groups"]) == 3000
    check(calls)


@pytest.mark.parametrize("names", [None, ["retention.ms"]])
async def test_describe_configs(names: list[str] | None) -> None:
    edge = edge_with(1, topics=900)
    resources = [
        {"resource_type": 2, "resource_name": name, "configuration_keys": names}
        for name in edge.context.services.image.topics
    ]
    described, calls = await answer(edge, 32, 4, resources=resources, include_synonyms=True)
    assert len(described["results"]) == 900
    assert all(
        [c["name"] for c in r["configs"]] == names or len(r["configs"]) > 20 for r in described["results"]
    )
    check(calls)


async def test_list_and_describe_groups() -> None:
    edge = edge_with(1)
    names = [f"group-{n}" for n in range(PARTITIONS)]
    for name in names:
        await answer(edge, 8, 9, **commit(1) | {"group_id": name})
    listed, calls = await answer(edge, 16, 4)
    assert {group["group_id"] for group in listed["groups"]} == set(names)
    check(calls)
    described, calls = await answer(edge, 15, 5, groups=names, include_authorized_operations=False)
    assert {group["group_state"] for group in described["groups"]} == {"Empty"}
    check(calls)


@pytest.mark.parametrize("version", [9, 12])
async def test_metadata_of_many_names(version: int) -> None:
    edge = edge_with(1, topics=900)
    names = [*edge.context.services.image.topics, *(f"unknown-{n}" for n in range(PARTITIONS))]
    wanted = [{"name": name, "topic_id": UUID(int=0)} if version >= 10 else {"name": name} for name in names]
    flags = {
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    seen, calls = await answer(edge, 3, version, topics=wanted, **flags)
    assert [(topic["name"], topic["error_code"]) for topic in seen["topics"]] == [
        (name, 3 if name.startswith("unknown") else 0) for name in names
    ]
    check(calls)


async def test_list_offsets_of_many_partitions() -> None:
    edge = edge_with(PARTITIONS)
    asked = [{"partition_index": n, "current_leader_epoch": -1, "timestamp": -1} for n in range(PARTITIONS)]
    topics = [{"name": "t", "partitions": asked}]
    listed, calls = await answer(edge, 2, 7, replica_id=-1, isolation_level=0, topics=topics)
    (topic,) = listed["topics"]
    assert [(p["partition_index"], p["offset"]) for p in topic["partitions"]] == [
        (n, n) for n in range(PARTITIONS)
    ]
    check(calls)


async def test_fetch_of_many_partitions() -> None:
    """Each entry is there twice: the last one counts."""
    edge = edge_with(PARTITIONS)
    entries = [
        {
            "partition": n,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1,
        }
        for offset in (5, 7)
        for n in range(PARTITIONS)
    ]
    fields = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": entries}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    fetched, calls = await answer(edge, 1, 12, **fields)
    (topic,) = fetched["responses"]
    assert [(p["partition_index"], p["high_watermark"]) for p in topic["partitions"]] == [
        (n, 7) for n in range(PARTITIONS)
    ]
    check(calls)
