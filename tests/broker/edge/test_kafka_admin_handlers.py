"""Administrative handlers in every version they serve: bytes in, bytes out, with services that only take
notes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.unthrottled import unthrottled
from ottla_broker.caller import BROKER
from ottla_broker.edge.kafka import codec, registry, schema
from ottla_broker.edge.kafka.decode import compile_reader
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.request import Context, Request
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage
from ottla_broker.requests import ConfigChange, ConfigValue, NewTopic, TopicResult
from ottla_broker.service.access import FULL
from ottla_broker.service.log_dirs import DescribedDir, ReplicaInDir
from ottla_broker.service.throttling import Mutations
from ottla_core.errors import (
    InvalidConfig,
    KafkaStorageError,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla_core.ids import TopicPartition

LETTERS, PARCELS = UUID(int=11), UUID(int=22)


def partition(**extra: Any) -> PartitionImage:
    return PartitionImage(replicas=(0,), leader=0, leader_epoch=3, isr=(0,), **extra)


IMAGE = ClusterImage(
    cluster_id="test-cluster",
    controller=0,
    brokers={
        0: BrokerImage(
            0,
            UUID(int=1),
            (Endpoint("kafka", "kafka", "broker-0", 9092), Endpoint("outside", "kafka", "example", 19092)),
            rack="a",
        )
    },
    topics={
        "letters": TopicImage(
            "letters", LETTERS, {"retention.ms": "5"}, tuple(partition() for _ in range(3))
        ),
        "parcels": TopicImage("parcels", PARCELS, {}, (partition(adding=(1,)), partition())),
    },
    names_by_id={LETTERS: "letters", PARCELS: "parcels"},
    broker_configs={"": {"log.retention.ms": "7", "log.segment.bytes": "9"}},
    group_configs={"readers": {"consumer.assignor": "range"}},
)
SETTING = ConfigValue(
    "retention.ms", "5", "topic", "long", "How long.", synonyms=(("retention.ms", "5", "topic"),)
)
SECRET = ConfigValue("password", "hidden", "static-broker", "password", "", sensitive=True)


class Notes:
    """Services that remember what they were asked."""

    image = IMAGE
    broker_id = 0
    access = FULL
    caller = BROKER
    throttling = unthrottled()

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.topics = self.configs = self.records = self.log_dirs = self

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout_s: float, mutations: Mutations
    ) -> list[TopicResult]:
        self.asked.append((list(topics), validate_only, timeout_s))
        made = TopicResult("fresh", topic_id=UUID(int=5), partitions=3, replication_factor=1)
        return [TopicResult(t.name, TopicAlreadyExists()) if t.name in IMAGE.topics else made for t in topics]

    async def delete(
        self, names: Sequence[str], *, timeout_s: float, mutations: Mutations
    ) -> list[TopicResult]:
        self.asked.append(list(names))
        return [TopicResult(n, None if n in IMAGE.topics else UnknownTopicOrPartition()) for n in names]

    async def grow(
        self,
        name: str,
        total: int,
        assignments: Any,
        *,
        validate_only: bool,
        timeout_s: float,
        mutations: Mutations,
    ) -> TopicResult:
        self.asked.append((name, total, assignments, validate_only))
        return TopicResult(name)

    def describe_topic(self, name: str) -> list[ConfigValue]:
        if name not in IMAGE.topics:
            raise UnknownTopicOrPartition()
        return [SETTING]

    def describe_new_topic(self, own: Mapping[str, str]) -> list[ConfigValue]:
        return [replace(SETTING, value=own.get("retention.ms", "default"))]

    def describe_broker(self, broker_id: int | None) -> list[ConfigValue]:
        self.asked.append(broker_id)
        return [SECRET]

    async def alter_topic(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        self.asked.append((name, list(changes), validate_only))
        if any(change.value == "bad" for change in changes):
            raise InvalidConfig("bad is not good")

    async def alter_broker(
        self, broker_id: int | None, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> None:
        self.asked.append((broker_id, list(changes), validate_only))

    async def replace_topic(self, name: str, values: Mapping[str, str], *, validate_only: bool) -> None:
        self.asked.append((name, dict(values), validate_only))

    def describe_group(self, group: str) -> list[ConfigValue]:
        return [
            replace(
                SETTING, name="consumer.assignor", source="group", value=group, type="string", synonyms=()
            )
        ]

    async def alter_group(self, group: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        self.asked.append((group, list(changes), validate_only))

    async def replace_group(self, group: str, values: Mapping[str, str], *, validate_only: bool) -> None:
        self.asked.append((group, dict(values), validate_only))

    async def describe(self, wanted: Mapping[str, frozenset[int]] | None) -> list[DescribedDir]:
        self.asked.append(wanted)
        replicas = tuple(
            ReplicaInDir(TopicPartition(topic, index), 100 + index, index)
            for topic, index in (("letters", 0), ("parcels", 1), ("letters", 2))
        )
        return [DescribedDir("/a", None, replicas, 1000, 600), DescribedDir("/b", KafkaStorageError())]

    def delete_records(self, tp: TopicPartition, offset: int, timeout_s: float) -> Any:
        if offset > 10:
            raise OffsetOutOfRange()
        if tp.partition == 0:
            return offset

        async def later() -> int:
            return offset

        return later()


async def ask(
    key: int, version: int, notes: Notes | None = None, listener: str = "kafka", **fields: Any
) -> Any:
    api = APIS[key]
    body = bytearray()
    compile_writer(schema.load(api, version, "request"))(body, fields)
    context = Context(
        services=cast(Any, notes or Notes()),
        config=cast(Any, SimpleNamespace(listener=SimpleNamespace(name=listener))),
        memory=cast(Any, None),
        metadata_cache=cast(Any, None),
        errors=cast(Any, SimpleNamespace(add=lambda name: None)),
    )
    reply = registry.entry(key).handle(context, Request(api, version, 1, "test", memoryview(body)))
    if inspect.isawaitable(reply):
        reply = await reply
    assert isinstance(reply, Mapping)
    answer = codec.encode_response(api, version, reply)
    return compile_reader(schema.load(api, version, "response"))(memoryview(answer))


def versions(key: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(APIS[key].low, APIS[key].high + 1))


def new_topic(name: str, count: int = 3, factor: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": count,
        "replication_factor": factor,
        "assignments": [],
        "configs": [],
    } | more


@versions(19)
async def test_create_topics(version: int) -> None:
    notes = Notes()
    configs = [{"name": "retention.ms", "value": "5"}]
    topics = [new_topic("fresh", configs=configs), new_topic("letters")]
    answer = await ask(19, version, notes, topics=topics, timeout=0, validate_only=False)
    ((asked, validate_only, timeout_s),) = notes.asked
    assert asked[0] == NewTopic("fresh", 3, 1, {"retention.ms": "5"})
    assert (validate_only, timeout_s) == (False, 1.0)
    fresh, letters = answer["topics"]
    assert (fresh["error_code"], letters["error_code"]) == (0, TopicAlreadyExists.code)
    assert letters["error_message"] == TopicAlreadyExists.sentence
    if version >= 5:
        assert (fresh["num_partitions"], fresh["replication_factor"]) == (3, 1)
        assert [(c["name"], c["value"], c["config_source"]) for c in fresh["configs"]] == [
            ("retention.ms", "5", 1)
        ]
        assert letters["configs"] is None
    if version >= 7:
        assert fresh["topic_id"] == UUID(int=5)


async def test_create_topics_with_an_assignment() -> None:
    notes = Notes()
    placed = [{"partition_index": p, "broker_ids": [p + 7]} for p in (1, 0)]
    gap = [{"partition_index": p, "broker_ids": [0]} for p in (0, 2)]
    topics = [
        new_topic("fresh", -1, -1, assignments=placed),
        new_topic("gap", -1, -1, assignments=gap),
        new_topic("both", 3, 1, assignments=placed),
        new_topic("twice"),
        new_topic("twice"),
    ]
    answer = await ask(19, 7, notes, topics=topics, timeout=1000, validate_only=True)
    ((asked, validate_only, _),) = notes.asked
    assert asked == [NewTopic("fresh", config={}, assignments=((7,), (8,)))]
    assert validate_only
    codes = {topic["name"]: topic["error_code"] for topic in answer["topics"]}
    assert codes == {"fresh": 0, "gap": 39, "both": 42, "twice": 42}


async def test_create_topics_tells_the_settings_of_a_topic_that_is_only_checked() -> None:
    """Java's client falls over an answer without them."""
    topics = [new_topic("fresh", configs=[{"name": "retention.ms", "value": "6"}])]
    answer = await ask(19, 7, topics=topics, timeout=1000, validate_only=True)
    (fresh,) = answer["topics"]
    assert [(c["name"], c["value"]) for c in fresh["configs"]] == [("retention.ms", "6")]


@versions(20)
async def test_delete_topics(version: int) -> None:
    if version < 6:
        answer = await ask(20, version, topic_names=["letters", "nobody"], timeout=1000)
        assert [(r["name"], r["error_code"]) for r in answer["responses"]] == [("letters", 0), ("nobody", 3)]
        return
    nameless = {"name": None}
    topics = [
        nameless | {"topic_id": LETTERS},
        nameless | {"topic_id": UUID(int=99)},
        {"name": "parcels", "topic_id": PARCELS},
        {"name": "nobody", "topic_id": UUID(int=0)},
    ]
    answer = await ask(20, version, topics=topics, timeout=1000)
    found = {(r["name"], r["topic_id"]): r["error_code"] for r in answer["responses"]}
    assert found == {
        ("letters", LETTERS): 0,
        (None, UUID(int=99)): 100,
        ("parcels", PARCELS): 42,
        ("nobody", UUID(int=0)): 3,
    }


async def test_a_topic_named_by_name_and_by_id_is_not_deleted() -> None:
    notes = Notes()
    topics = [{"name": "letters", "topic_id": UUID(int=0)}, {"name": None, "topic_id": LETTERS}]
    answer = await ask(20, 6, notes, topics=topics, timeout=1000)
    assert [r["error_code"] for r in answer["responses"]] == [42]
    assert notes.asked == []


@versions(21)
async def test_delete_records(version: int) -> None:
    partitions = [{"partition_index": p, "offset": o} for p, o in ((0, 4), (1, 5), (2, 11))]
    answer = await ask(21, version, topics=[{"name": "letters", "partitions": partitions}], timeout=1000)
    (topic,) = answer["topics"]
    found = [(p["partition_index"], p["low_watermark"], p["error_code"]) for p in topic["partitions"]]
    assert found == [(0, 4, 0), (1, 5, 0), (2, -1, OffsetOutOfRange.code)]


@versions(32)
async def test_describe_configs(version: int) -> None:
    def resource(kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
        return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}

    notes = Notes()
    resources = [
        resource(2, "letters"),
        resource(2, "letters", ["other"]),
        resource(2, "letters", []),
        resource(2, "nobody"),
        resource(4, "0"),
        resource(4, ""),
        resource(4, "zero"),
        resource(8, "0"),
        resource(77, "what"),
        resource(32, "readers"),
    ]
    options = {"include_synonyms": True, "include_documentation": True}
    answer = await ask(32, version, notes, resources=resources, **options)
    shape = [(len(r["configs"]), r["error_code"]) for r in answer["results"]]
    assert shape == [(1, 0), (0, 0), (1, 0), (0, 3), (1, 0), (1, 0), (0, 42), (0, 0), (0, 42), (1, 0)]
    assert notes.asked == [0, None]
    setting = answer["results"][0]["configs"][0]
    assert (setting["name"], setting["value"], setting["config_source"]) == ("retention.ms", "5", 1)
    assert setting["synonyms"] == [{"name": "retention.ms", "value": "5", "source": 1}]
    if version >= 3:
        assert (setting["config_type"], setting["documentation"]) == (5, "How long.")
    secret = answer["results"][4]["configs"][0]
    assert (secret["value"], secret["is_sensitive"]) == (None, True)
    own = answer["results"][-1]["configs"][0]
    assert (own["name"], own["value"], own["config_source"]) == ("consumer.assignor", "readers", 8)


@versions(33)
async def test_alter_configs_replaces(version: int) -> None:
    notes = Notes()
    resources = [
        {"resource_type": 2, "resource_name": "letters", "configs": [{"name": "a", "value": "1"}]},
        {"resource_type": 4, "resource_name": "", "configs": [{"name": "log.retention.ms", "value": "8"}]},
        {"resource_type": 2, "resource_name": "parcels", "configs": [{"name": "a", "value": None}]},
        {"resource_type": 32, "resource_name": "readers", "configs": [{"name": "a", "value": "1"}]},
    ]
    answer = await ask(33, version, notes, resources=resources, validate_only=False)
    assert [r["error_code"] for r in answer["responses"]] == [0, 0, 42, 0]
    gone, kept = ConfigChange("delete", "log.segment.bytes"), ConfigChange("set", "log.retention.ms", "8")
    assert notes.asked == [
        ("letters", {"a": "1"}, False),
        (None, [gone, kept], False),
        ("readers", {"a": "1"}, False),
    ]


@versions(37)
async def test_create_partitions(version: int) -> None:
    notes = Notes()
    topics = [
        {"name": "letters", "count": 5, "assignments": None},
        {"name": "parcels", "count": 4, "assignments": [{"broker_ids": [0]}, {"broker_ids": [0]}]},
    ]
    answer = await ask(37, version, notes, topics=topics, timeout=1000, validate_only=True)
    assert [(r["name"], r["error_code"]) for r in answer["results"]] == [("letters", 0), ("parcels", 0)]
    assert notes.asked == [("letters", 5, None, True), ("parcels", 4, ((0,), (0,)), True)]


@versions(44)
async def test_incremental_alter_configs(version: int) -> None:
    def change(name: str, operation: int, value: str | None) -> dict[str, Any]:
        return {"name": name, "config_operation": operation, "value": value}

    def resource(kind: int, name: str, *changes: dict[str, Any]) -> dict[str, Any]:
        return {"resource_type": kind, "resource_name": name, "configs": list(changes)}

    notes = Notes()
    resources = [
        resource(
            2, "letters", change("a", 0, "1"), change("b", 1, None), change("c", 2, "x"), change("d", 3, "y")
        ),
        resource(4, "0", change("a", 0, "1")),
        resource(2, "parcels", change("a", 0, "bad")),
        resource(2, "t1", change("a", 0, None)),
        resource(2, "t2", change("a", 4, "1")),
        resource(2, "t3", change("a", 0, "1"), change("a", 0, "2")),
        resource(8, "0", change("root", 0, "DEBUG")),
        resource(32, "readers", change("a", 1, None)),
    ]
    answer = await ask(44, version, notes, resources=resources, validate_only=False)
    assert [r["error_code"] for r in answer["responses"]] == [0, 0, 40, 42, 42, 42, 42, 0]
    assert answer["responses"][2]["error_message"] == "bad is not good"
    kinds = [change.kind for change in notes.asked[0][1]]
    assert kinds == ["set", "delete", "append", "subtract"]
    assert notes.asked[1] == (0, [ConfigChange("set", "a", "1")], False)
    assert notes.asked[3:] == [("readers", [ConfigChange("delete", "a")], False)]


async def test_list_partition_reassignments() -> None:
    for topics in (None, [{"name": "parcels", "partition_indexes": [0, 1, 9]}, {"name": "nobody"}]):
        answer = await ask(46, 0, topics=topics, timeout=1000)
        (topic,) = answer["topics"]
        (moving,) = topic["partitions"]
        assert (topic["name"], moving["partition_index"], moving["adding_replicas"]) == ("parcels", 0, [1])


@versions(60)
async def test_describe_cluster(version: int) -> None:
    answer = await ask(60, version, include_cluster_authorized_operations=True)
    assert (answer["cluster_id"], answer["controller_id"], answer["error_code"]) == ("test-cluster", 0, 0)
    (broker,) = answer["brokers"]
    assert (broker["broker_id"], broker["host"], broker["port"], broker["rack"]) == (0, "broker-0", 9092, "a")
    assert answer["cluster_authorized_operations"] > 0
    outside = await ask(60, version, listener="outside", include_cluster_authorized_operations=False)
    assert outside["brokers"][0]["host"] == "example"
    if version >= 1:
        assert (await ask(60, version, endpoint_type=2))["error_code"] == 114


@versions(74)
async def test_list_config_resources(version: int) -> None:
    answer = await ask(74, version, resource_types=[2, 4, 32])
    found = [(r.get("resource_type", 16), r["resource_name"]) for r in answer["config_resources"]]
    assert found == ([] if version == 0 else [(2, "letters"), (2, "parcels"), (4, "0"), (32, "readers")])
    if version >= 1:
        assert (await ask(74, version, resource_types=[99]))["error_code"] == 35


async def test_describe_topic_partitions_page_by_page() -> None:
    seen, cursor, pages = [], None, 0
    while True:
        answer = await ask(75, 0, topics=[], response_partition_limit=2, cursor=cursor)
        seen += [(t["name"], p["partition_index"]) for t in answer["topics"] for p in t["partitions"]]
        cursor, pages = answer["next_cursor"], pages + 1
        if cursor is None:
            break
    assert seen == [("letters", 0), ("letters", 1), ("letters", 2), ("parcels", 0), ("parcels", 1)]
    assert pages == 3


async def test_describe_topic_partitions_of_an_unknown_topic() -> None:
    asked = [{"name": name} for name in ("nobody", "letters", "letters")]
    answer = await ask(75, 0, topics=asked, response_partition_limit=-1)
    letters, nobody = (await ask(75, 0, topics=asked, response_partition_limit=100))["topics"]
    assert (letters["name"], letters["error_code"], len(letters["partitions"])) == ("letters", 0, 3)
    assert (nobody["name"], nobody["error_code"]) == ("nobody", 3)
    (impossible,) = (await ask(75, 0, topics=[{"name": "no body"}], response_partition_limit=1))["topics"]
    assert impossible["error_code"] == 17
    # A page holds one partition at least, or nobody would ever see the next one.
    assert answer["next_cursor"] == {"topic_name": "letters", "partition_index": 1}


@versions(35)
async def test_log_dirs(version: int) -> None:
    notes = Notes()
    answer = await ask(35, version, notes, topics=[{"topic": "letters", "partitions": [0, 2]}])
    assert notes.asked == [{"letters": {0, 2}}]
    assert answer.get("error_code", 0) == 0
    good, bad = answer["results"]
    assert (good["error_code"], good["log_dir"]) == (0, "/a")
    rows = {
        topic["name"]: [
            (p["partition_index"], p["partition_size"], p["offset_lag"]) for p in topic["partitions"]
        ]
        for topic in good["topics"]
    }
    assert rows == {"letters": [(0, 100, 0), (2, 102, 2)], "parcels": [(1, 101, 1)]}
    assert (bad["error_code"], bad["log_dir"], bad["topics"]) == (KafkaStorageError.code, "/b", [])
    if version >= 4:
        assert [(d["total_bytes"], d["usable_bytes"]) for d in (good, bad)] == [(1000, 600), (-1, -1)]
    await ask(35, version, notes, topics=None)
    assert notes.asked[-1] is None
