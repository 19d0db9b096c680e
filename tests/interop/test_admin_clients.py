"""Administration as the stock clients' admin interfaces do it, refusals included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from interop.clients import TIMEOUT_S, Sample, kafka, read_confluent, write_confluent
from interop.target import Target

pytestmark = pytest.mark.integration

PythonConfigResource = kafka.admin.ConfigResource
PythonConfigResourceType = kafka.admin.ConfigResourceType


def only(futures: dict[object, Future]) -> object:  # type: ignore[type-arg]
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def refusal(futures: dict[object, Future]) -> int:  # type: ignore[type-arg]
    with pytest.raises(KafkaException) as caught:
        only(futures)
    error = caught.value.args[0]
    assert error.str(), "a refusal comes with a sentence"
    return int(error.code())


def eventually(holds: Callable[[], bool]) -> bool:
    """Kafka answers before every broker has heard of a change; Ottla's answer comes after. Both are right."""
    deadline = time.monotonic() + 5
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def is_listed(admin: AdminClient, name: str) -> bool:
    return name in admin.list_topics(timeout=TIMEOUT_S).topics


def described(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    found = only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    assert isinstance(found, dict)
    return found


class TestConfluent:
    def test_a_topics_life(self, admin: AdminClient, new_name: Callable[[], str]) -> None:
        name = new_name()
        only(admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "3600000"})]))
        assert eventually(lambda: is_listed(admin, name))
        assert sorted(admin.list_topics(timeout=TIMEOUT_S).topics[name].partitions) == [0, 1]
        assert described(admin, name)["retention.ms"].value == "3600000"

        only(admin.create_partitions([NewPartitions(name, 5)]))
        assert eventually(lambda: len(self.description(admin, name).partitions) == 5)
        description = self.description(admin, name)
        assert [partition.id for partition in description.partitions] == [0, 1, 2, 3, 4]
        assert all(len(partition.isr) == 1 and partition.leader for partition in description.partitions)
        assert not description.is_internal

        only(admin.delete_topics([name]))
        assert eventually(lambda: not is_listed(admin, name))

    def test_a_deleted_name_can_be_used_again(
        self, target: Target, admin: AdminClient, new_name: Callable[[], str]
    ) -> None:
        name = new_name()
        ids = []
        for value in (b"old", b"new"):
            only(admin.create_topics([NewTopic(name, 1, 1)]))
            assert eventually(lambda: is_listed(admin, name))
            ids.append(str(only(admin.describe_topics(TopicCollection([name]))).topic_id))
            write_confluent(target, name, [Sample(b"key", value)])
            assert read_confluent(target, name, 1) == [Sample(b"key", value)]
            only(admin.delete_topics([name]))
            assert eventually(lambda: not is_listed(admin, name))
        assert ids[0] != ids[1]

    def test_defaults_come_from_the_broker(self, admin: AdminClient, new_name: Callable[[], str]) -> None:
        name = new_name()
        only(admin.create_topics([NewTopic(name)]))
        assert eventually(lambda: is_listed(admin, name))
        assert len(admin.list_topics(timeout=TIMEOUT_S).topics[name].partitions) >= 1

    def test_only_checking_creates_nothing(self, admin: AdminClient, new_name: Callable[[], str]) -> None:
        name = new_name()
        only(admin.create_topics([NewTopic(name, 1, 1)], validate_only=True))
        assert name not in admin.list_topics(timeout=TIMEOUT_S).topics

    def test_refusals(self, admin: AdminClient, topic: str, new_name: Callable[[], str]) -> None:
        create, name = admin.create_topics, new_name()
        assert refusal(create([NewTopic(topic, 1, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
        assert refusal(create([NewTopic(name, 1, 7)])) == KafkaError.INVALID_REPLICATION_FACTOR
        assert refusal(create([NewTopic(name, 0, 1)])) == KafkaError.INVALID_PARTITIONS
        assert refusal(create([NewTopic("no/slash", 1, 1)])) == KafkaError.TOPIC_EXCEPTION
        nonsense = NewTopic(name, 1, 1, config={"cleanup.policy": "burn"})
        assert refusal(create([nonsense])) == KafkaError.INVALID_CONFIG
        assert refusal(admin.create_partitions([NewPartitions(topic, 1)])) == KafkaError.INVALID_PARTITIONS
        unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
        assert refusal(admin.create_partitions([NewPartitions(name, 3)])) == unknown
        assert refusal(admin.delete_topics([name])) == unknown
        assert refusal(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)])) == unknown
        assert name not in admin.list_topics(timeout=TIMEOUT_S).topics

    def test_settings_change_one_by_one(self, admin: AdminClient, topic: str) -> None:
        def change(name: str, value: str | None, kind: AlterConfigOpType) -> dict[object, Future]:  # type: ignore[type-arg]
            entry = ConfigEntry(name, value, incremental_operation=kind)
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            return admin.incremental_alter_configs([resource])  # type: ignore[no-any-return]

        only(change("retention.ms", "120000", AlterConfigOpType.SET))
        only(change("cleanup.policy", "compact", AlterConfigOpType.APPEND))
        assert eventually(lambda: "compact" in described(admin, topic)["cleanup.policy"].value)
        now = described(admin, topic)
        assert now["retention.ms"].value == "120000"
        assert now["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        assert set(now["cleanup.policy"].value.split(",")) == {"delete", "compact"}
        only(change("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
        only(change("retention.ms", None, AlterConfigOpType.DELETE))
        assert eventually(lambda: bool(described(admin, topic)["retention.ms"].is_default))
        now = described(admin, topic)
        assert now["cleanup.policy"].value == "compact"
        assert now["retention.ms"].value == "604800000"
        assert now["retention.ms"].is_default

        assert refusal(change("retention.ms", "soon", AlterConfigOpType.SET)) == KafkaError.INVALID_CONFIG
        assert refusal(change("no.such.setting", "1", AlterConfigOpType.SET)) == KafkaError.INVALID_CONFIG

    def test_the_old_call_replaces_all_settings(self, admin: AdminClient, topic: str) -> None:
        def replace(**settings: str) -> None:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            resource = ConfigResource(ResourceType.TOPIC, topic, set_config=named)
            with pytest.warns(DeprecationWarning, match="incremental"):
                only(admin.alter_configs([resource]))

        replace(retention_ms="1000000", max_message_bytes="2000000")
        replace(retention_ms="2000000")
        assert eventually(lambda: described(admin, topic)["retention.ms"].value == "2000000")
        now = described(admin, topic)
        assert (now["retention.ms"].value, now["max.message.bytes"].value) == ("2000000", "1048588")

    def test_the_broker_describes_itself(self, admin: AdminClient) -> None:
        cluster = admin.describe_cluster().result(TIMEOUT_S)
        (node,) = cluster.nodes
        assert cluster.controller.id == node.id
        assert cluster.cluster_id
        settings = only(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node.id))]))
        assert isinstance(settings, dict)
        assert settings["log.segment.bytes"].value == "1073741824"

    def test_records_are_deleted_from_the_front(self, target: Target, admin: AdminClient, topic: str) -> None:
        samples = [Sample(b"%d" % n, b"value") for n in range(10)]
        write_confluent(target, topic, samples)
        outcome = only(admin.delete_records([TopicPartition(topic, 0, 4)]))
        assert outcome.low_watermark == 4
        assert self.first_and_next(admin, topic) == (4, 10)
        assert read_confluent(target, topic, 6, start=4) == samples[4:]
        beyond = admin.delete_records([TopicPartition(topic, 0, 11)])
        assert refusal(beyond) == KafkaError.OFFSET_OUT_OF_RANGE
        everything = only(admin.delete_records([TopicPartition(topic, 0, -1)]))
        assert everything.low_watermark == 10
        assert self.first_and_next(admin, topic) == (10, 10)

    def description(self, admin: AdminClient, name: str) -> TopicDescription:
        return only(admin.describe_topics(TopicCollection([name])))

    def first_and_next(self, admin: AdminClient, topic: str) -> tuple[int, ...]:
        specs = (OffsetSpec.earliest(), OffsetSpec.latest())
        return tuple(only(admin.list_offsets({TopicPartition(topic, 0): spec})).offset for spec in specs)


class TestKafkaPython:
    @pytest.fixture
    def client(self, target: Target) -> Iterator[kafka.KafkaAdminClient]:
        client = kafka.KafkaAdminClient(bootstrap_servers=target.bootstrap)
        yield client
        client.close()

    def test_a_topics_life(self, client: kafka.KafkaAdminClient, new_name: Callable[[], str]) -> None:
        name = new_name()
        configs = {"min.insync.replicas": "1", "segment.ms": "7200000"}
        client.create_topics({name: {"num_partitions": 3, "replication_factor": 1, "configs": configs}})
        assert eventually(lambda: name in client.list_topics())
        client.create_partitions({name: 4})
        assert eventually(lambda: len(client.describe_topics([name])[0]["partitions"]) == 4)
        resource = PythonConfigResource(PythonConfigResourceType.TOPIC, name)

        def segment_ms() -> str:
            return str(client.describe_configs([resource])["topic"][name]["segment.ms"]["value"])

        assert segment_ms() == "7200000"
        changed = PythonConfigResource(PythonConfigResourceType.TOPIC, name, {"segment.ms": "3600000"})
        client.alter_configs([changed])
        assert eventually(lambda: segment_ms() == "3600000")
        client.delete_topics([name])
        assert eventually(lambda: name not in client.list_topics())

    def test_partitions_come_page_by_page(
        self, client: kafka.KafkaAdminClient, make_topic: Callable[..., str], new_name: Callable[[], str]
    ) -> None:
        names = sorted(make_topic(new_name(), partitions=3) for _ in range(2))
        seen, cursor = [], None
        while True:
            page = client.describe_topic_partitions(names, response_partition_limit=2, cursor=cursor)
            found = [(t["name"], p["partition_index"]) for t in page["topics"] for p in t["partitions"]]
            assert 0 < len(found) <= 2
            seen += found
            if (cursor := page["next_cursor"]) is None:
                break
        assert seen == [(name, partition) for name in names for partition in range(3)]

    def test_a_topic_is_deleted_by_its_id(self, client: kafka.KafkaAdminClient, topic: str) -> None:
        (description,) = client.describe_topics([topic])
        client.delete_topics([UUID(str(description["topic_id"]))])
        assert eventually(lambda: topic not in client.list_topics())

    def test_settings_name_where_they_come_from(self, client: kafka.KafkaAdminClient, topic: str) -> None:
        def entry() -> dict[str, Any]:
            resource = PythonConfigResource(PythonConfigResourceType.TOPIC, topic)
            found = client.describe_configs([resource], include_synonyms=True, config_filter="all")
            return dict(found["topic"][topic]["max.message.bytes"])

        before = entry()
        assert (before["config_source"], before["config_type"]) == ("DEFAULT_CONFIG", "INT")
        assert [s["name"] for s in before["synonyms"]] == ["message.max.bytes"]
        changed = {"max.message.bytes": "5000"}
        client.alter_configs([PythonConfigResource(PythonConfigResourceType.TOPIC, topic, changed)])
        assert eventually(lambda: entry()["config_source"] == "DYNAMIC_TOPIC_CONFIG")
        synonyms = [(s["name"], s["value"]) for s in entry()["synonyms"]]
        assert synonyms == [("max.message.bytes", "5000"), ("message.max.bytes", "1048588")]

    def test_what_has_settings_is_listed(self, client: kafka.KafkaAdminClient, topic: str) -> None:
        resources = client.list_config_resources()
        assert topic in resources["topic"]
        assert len(resources["broker"]) == 1

    def test_the_cluster(self, client: kafka.KafkaAdminClient, target: Target) -> None:
        (broker,) = client.describe_cluster()["brokers"]
        assert f"{broker['host']}:{broker['port']}" == target.bootstrap


def test_aiokafka(target: Target, new_name: Callable[[], str]) -> None:
    async def live() -> None:
        name = new_name()
        client = AIOKafkaAdminClient(bootstrap_servers=target.bootstrap)
        await client.start()
        try:
            created = await client.create_topics(
                [AioNewTopic(name, 1, 1, topic_configs={"retention.ms": "90000"})]
            )
            assert [error[1] for error in created.topic_errors] == [0]
            again = await client.create_topics([AioNewTopic(name, 1, 1)])
            assert [error[1] for error in again.topic_errors] == [KafkaError.TOPIC_ALREADY_EXISTS]
            await client.create_partitions({name: AioNewPartitions(2)})
            (description,) = await client.describe_topics([name])
            assert len(description["partitions"]) == 2
            resource = AioConfigResource(AioConfigResourceType.TOPIC, name)
            (answer,) = await client.describe_configs([resource])
            settings = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert settings["retention.ms"] == "90000"
            await client.delete_topics([name])
            assert name not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(live(), TIMEOUT_S))
