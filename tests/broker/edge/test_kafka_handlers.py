"""Every hot handler in every version, asked by a peer whose bytes kio wrote and whose answers kio reads."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from broker.edge.fakes import FakeBroker
from broker.edge.kafka_batches import batch
from broker.edge.kafka_peer import Peer
from ottla_broker.acl import SUPPORTED, ResourceType
from ottla_broker.edge.kafka import admin
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.requests import Fetched
from ottla_core.ids import TopicPartition

NO_ID = UUID(int=0)
SECOND = timedelta(seconds=1)


def versions(key: int) -> range:
    return range(APIS[key].low, APIS[key].high + 1)


def request_types(key: int, version: int) -> Any:
    return importlib.import_module(f"kio.schema.{APIS[key].name}.v{version}.request")


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        yield running


@pytest.fixture
async def peer(broker: FakeBroker) -> AsyncIterator[Peer]:
    connected = await Peer.connect(broker.port)
    yield connected
    connected.close()


def produce_fields(
    version: int, topic: Any, partitions: dict[int, bytes | None], acks: int = -1, **more: Any
) -> dict[str, Any]:
    types = request_types(0, version)
    data = tuple(types.PartitionProduceData(index=i, records=r) for i, r in partitions.items())
    key = {"topic_id": topic} if version >= 13 else {"name": topic}
    made = types.TopicProduceData(partition_data=data, **key)
    return {"transactional_id": None, "acks": acks, "timeout": SECOND, "topic_data": (made,)} | more


def fetch_fields(version: int, topic: Any, wanted: dict[int, int], **more: Any) -> dict[str, Any]:
    types = request_types(1, version)
    optional: dict[str, Any] = {}
    fields: dict[str, Any] = {"max_wait": timedelta(0), "min_bytes": 1, "max_bytes": 1 << 20}
    fields["isolation_level"] = 0
    if version < 15:
        fields["replica_id"] = -1
    if version >= 5:
        optional["log_start_offset"] = -1
    if version >= 7:
        fields |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": ()}
    if version >= 9:
        optional["current_leader_epoch"] = -1
    if version >= 11:
        fields["rack_id"] = "rack"
    partitions = tuple(
        types.FetchPartition(partition=i, fetch_offset=o, partition_max_bytes=1 << 20, **optional)
        for i, o in wanted.items()
    )
    key = {"topic_id": topic} if version >= 13 else {"topic": topic}
    fields["topics"] = (types.FetchTopic(partitions=partitions, **key),)
    return fields | more


@pytest.mark.parametrize("version", versions(0))
async def test_produce_and_its_offsets(broker: FakeBroker, peer: Peer, version: int) -> None:
    topic_id = broker.services.add_topic("t")
    topic = topic_id if version >= 13 else "t"
    for expected in (0, 3):
        answer = await peer.ask(0, version, **produce_fields(version, topic, {1: batch(b"a", b"b", b"c")}))
        (partition,) = answer.responses[0].partition_responses
        assert (partition.index, partition.error_code.value, partition.base_offset) == (1, 0, expected)
    two = await peer.ask(0, version, **produce_fields(version, topic, {0: batch(b"x"), 1: batch(b"y")}))
    assert [p.base_offset for p in two.responses[0].partition_responses] == [0, 6]


@pytest.mark.parametrize("version", versions(0))
async def test_produce_answers_errors_per_partition(broker: FakeBroker, peer: Peer, version: int) -> None:
    topic_id = broker.services.add_topic("t")
    topic = topic_id if version >= 13 else "t"
    bent = bytearray(batch(b"a"))
    bent[-1] ^= 1
    wanted: dict[int, bytes | None] = {0: batch(b"a"), 1: bytes(bent), 7: batch(b"a"), 8: None, 9: b""}
    answer = await peer.ask(0, version, **produce_fields(version, topic, wanted))
    codes = [p.error_code.value for p in answer.responses[0].partition_responses]
    assert codes == [0, 2, 3, 87, 87]
    assert broker.services.records.find(TopicPartition("t", 0)).end == 1
    unknown = UUID(int=99) if version >= 13 else "unknown"
    answer = await peer.ask(0, version, **produce_fields(version, unknown, {0: batch(b"a")}))
    code = answer.responses[0].partition_responses[0].error_code.value
    assert code == (100 if version >= 13 else 3)


async def test_produce_refuses_transactions_and_odd_acks(broker: FakeBroker, peer: Peer) -> None:
    broker.services.add_topic("t")
    fields = produce_fields(9, "t", {0: batch(b"a")}, transactional_id="x")
    answer = await peer.ask(0, 9, **fields)
    assert answer.responses[0].partition_responses[0].error_code.value == 48
    answer = await peer.ask(0, 9, **produce_fields(9, "t", {0: batch(b"a")}, acks=2))
    assert answer.responses[0].partition_responses[0].error_code.value == 21
    assert broker.services.records.find(TopicPartition("t", 0)).end == 0


async def test_acks_zero_has_no_answer_and_closes_on_failure(broker: FakeBroker, peer: Peer) -> None:
    broker.services.add_topic("t")
    peer.send(0, 9, **produce_fields(9, "t", {0: batch(b"a")}, acks=0))
    peer._sent.clear()
    await peer.ask(18, 0)
    assert broker.services.records.find(TopicPartition("t", 0)).end == 1
    peer.send(0, 9, **produce_fields(9, "gone", {0: batch(b"a")}, acks=0))
    assert await peer.closed()


@pytest.mark.parametrize("version", versions(1))
async def test_fetch_gives_the_bytes_back(broker: FakeBroker, peer: Peer, version: int) -> None:
    topic_id = broker.services.add_topic("t")
    topic = topic_id if version >= 13 else "t"
    small, large = batch(b"a", b"b"), batch(b"x" * 50_000)
    broker.services.records.append(TopicPartition("t", 0), small, 1)
    broker.services.records.append(TopicPartition("t", 1), large, 1)
    answer = await peer.ask(1, version, **fetch_fields(version, topic, {0: 1, 1: 0}))
    first, second = answer.responses[0].partitions
    assert first.records[16:] == small[16:]
    assert second.records[16:] == large[16:]
    assert (first.high_watermark, first.last_stable_offset, second.high_watermark) == (2, 2, 1)
    assert first.aborted_transactions is None
    if version >= 7:
        assert answer.session_id == 0


@pytest.mark.parametrize("version", versions(1))
async def test_fetch_passes_the_rack_on_and_the_preferred_replica_back(
    broker: FakeBroker, peer: Peer, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    topic_id = broker.services.add_topic("t")
    racks: list[str | None] = []

    def fetch(wants: Any, *, rack: str | None, **limits: Any) -> list[Fetched]:
        racks.append(rack)
        return [Fetched(want.tp, None, 5, 5, 0, preferred_replica=7) for want in wants]

    monkeypatch.setattr(broker.services.records, "fetch", fetch)
    topic = topic_id if version >= 13 else "t"
    answer = await peer.ask(1, version, **fetch_fields(version, topic, {0: 1}))
    assert racks == ["rack" if version >= 11 else None]
    if version >= 11:
        assert answer.responses[0].partitions[0].preferred_read_replica.real == 7


@pytest.mark.parametrize("version", versions(1))
async def test_fetch_errors_are_per_partition(broker: FakeBroker, peer: Peer, version: int) -> None:
    topic_id = broker.services.add_topic("t")
    topic = topic_id if version >= 13 else "t"
    wanted = fetch_fields(version, topic, {0: 5, 1: 0, 9: 0}, max_wait=timedelta(seconds=30))
    answer = await peer.ask(1, version, **wanted)
    assert [p.error_code.value for p in answer.responses[0].partitions] == [1, 0, 3]
    unknown = UUID(int=99) if version >= 13 else "unknown"
    answer = await peer.ask(1, version, **fetch_fields(version, unknown, {0: 0}))
    assert answer.responses[0].partitions[0].error_code.value == (100 if version >= 13 else 3)


@pytest.mark.parametrize("session_epoch", [-1, 0])
async def test_of_several_entries_for_a_partition_the_last_counts(
    broker: FakeBroker, peer: Peer, monkeypatch: pytest.MonkeyPatch, session_epoch: int
) -> None:
    broker.services.add_topic("t")
    asked: list[tuple[int, int]] = []

    def fetch(wants: Any, **limits: Any) -> list[Fetched]:
        asked.extend((want.tp.partition, want.offset) for want in wants)
        return [Fetched(want.tp, None, 5, 5, 0) for want in wants]

    monkeypatch.setattr(broker.services.records, "fetch", fetch)
    fields = [fetch_fields(12, "t", {0: offset, 1: 9}, session_epoch=session_epoch) for offset in range(3)]
    fields[0]["topics"] = tuple(topic for each in fields for topic in each["topics"])
    answer = await peer.ask(1, 12, **fields[0])
    assert asked == [(0, 2), (1, 9)]
    assert [[p.partition_index for p in topic.partitions] for topic in answer.responses] == [[0, 1]]


async def test_fetch_of_an_unknown_session_is_refused(broker: FakeBroker, peer: Peer) -> None:
    broker.services.add_topic("t")
    answer = await peer.ask(1, 12, **fetch_fields(12, "t", {0: 0}, session_id=77, session_epoch=3))
    assert (answer.error_code.value, answer.responses) == (70, ())


async def test_fetch_waits_and_wakes(broker: FakeBroker, peer: Peer) -> None:
    broker.services.add_topic("t")
    peer.send(1, 12, **fetch_fields(12, "t", {0: 0}, max_wait=timedelta(seconds=20)))
    other = await Peer.connect(broker.port)
    await other.ask(0, 9, **produce_fields(9, "t", {0: batch(b"news")}))
    answer = await peer.receive()
    assert b"news" in answer.responses[0].partitions[0].records
    other.close()


@pytest.mark.parametrize("version", versions(2))
async def test_list_offsets(broker: FakeBroker, peer: Peer, version: int) -> None:
    broker.services.add_topic("t")
    tp = TopicPartition("t", 0)
    broker.services.records.append(tp, batch(b"a", b"b", timestamp_ms=1000), 1)
    broker.services.records.append(tp, batch(b"c", timestamp_ms=2000), 1)
    types = request_types(2, version)

    async def offsets(*wanted: tuple[int, int]) -> list[tuple[int, int]]:
        partitions = tuple(types.ListOffsetsPartition(partition_index=i, timestamp=t) for i, t in wanted)
        fields: dict[str, Any] = {"replica_id": -1}
        if version >= 2:
            fields["isolation_level"] = 0
        if version >= 10:
            fields["timeout"] = SECOND
        topics = (types.ListOffsetsTopic(name="t", partitions=partitions),)
        answer = await peer.ask(2, version, topics=topics, **fields)
        return [(p.error_code.value, p.offset) for p in answer.topics[0].partitions]

    assert await offsets((0, -1), (0, -2), (0, 1500), (5, -1)) == [(0, 3), (0, 0), (0, 2), (3, -1)]
    assert await offsets((0, -4), (0, -5), (0, -6)) == [(0, 0), (0, -1), (0, -1)]
    assert await offsets((5, -4), (5, -5), (5, -6)) == [(3, -1)] * 3, (
        "no such partition, whatever is asked of it"
    )


@pytest.mark.parametrize("version", versions(3))
async def test_metadata(broker: FakeBroker, peer: Peer, version: int) -> None:
    topic_id = broker.services.add_topic("t", partitions=3)
    broker.services.add_topic("__consumer_offsets", partitions=1)
    more: dict[str, Any] = {"allow_auto_topic_creation": False} if version >= 4 else {}
    if version >= 8:
        more["include_topic_authorized_operations"] = True
    if 8 <= version <= 10:
        more["include_cluster_authorized_operations"] = True
    types = request_types(3, version)

    def asked(name: str | None, by_id: UUID = NO_ID) -> Any:
        return types.MetadataRequestTopic(name=name, **({"topic_id": by_id} if version >= 10 else {}))

    everything = await peer.ask(3, version, topics=() if version == 0 else None, **more)
    assert [(b.node_id, b.host, b.port) for b in everything.brokers] == [(0, "127.0.0.1", broker.port)]
    assert [topic.name for topic in everything.topics] == ["t", "__consumer_offsets"]
    (topic, internal) = everything.topics
    assert [(p.partition_index, p.leader_id, p.replica_nodes) for p in topic.partitions] == [
        (index, 0, (0,)) for index in range(3)
    ]
    if version >= 1:
        assert (everything.controller_id, topic.is_internal, internal.is_internal) == (0, False, True)
        assert (await peer.ask(3, version, topics=(), **more)).topics == ()
    if version >= 2:
        assert everything.cluster_id == broker.services.image.cluster_id
    if version >= 10:
        assert topic.topic_id == topic_id
    if version >= 4:
        named = await peer.ask(3, version, topics=(asked("t"), asked("missing"), asked("bad name")), **more)
        assert [t.error_code.value for t in named.topics] == [0, 3, 17]
    if version >= 12:
        by_id = await peer.ask(3, version, topics=(asked(None, topic_id), asked(None, UUID(int=5))), **more)
        assert [(t.name, t.error_code.value) for t in by_id.topics] == [("t", 0), (None, 100)]
        # As Java's client asks.
        by_id = await peer.ask(3, version, topics=(asked("", topic_id), asked("", UUID(int=5))), **more)
        assert [(t.name, t.error_code.value) for t in by_id.topics] == [("t", 0), (None, 100)]
    if version >= 8:
        told = {t.topic_authorized_operations for t in (*everything.topics, named.topics[0])}
        assert told == {SUPPORTED[ResourceType.TOPIC]}
        plain = await peer.ask(3, version, topics=None, **dict.fromkeys(more, False))
        assert {t.topic_authorized_operations for t in plain.topics} == {admin.NO_OPERATIONS}
        assert [t.partitions for t in plain.topics] == [t.partitions for t in everything.topics]
    if 8 <= version <= 10:
        assert everything.cluster_authorized_operations == SUPPORTED[ResourceType.CLUSTER]
        assert plain.cluster_authorized_operations == admin.NO_OPERATIONS


async def test_metadata_creates_topics_when_it_may(broker: FakeBroker, peer: Peer) -> None:
    types = request_types(3, 4)
    wanted = (types.MetadataRequestTopic(name="new"),)
    refused = await peer.ask(3, 4, topics=wanted, allow_auto_topic_creation=False)
    assert refused.topics[0].error_code.value == 3
    created = await peer.ask(3, 4, topics=wanted, allow_auto_topic_creation=True)
    assert (created.topics[0].error_code.value, len(created.topics[0].partitions)) == (0, 2)


async def test_metadata_follows_the_image(broker: FakeBroker, peer: Peer) -> None:
    broker.services.add_topic("one")
    assert len((await peer.ask(3, 1, topics=None)).topics) == 1
    broker.services.add_topic("two")
    assert len((await peer.ask(3, 1, topics=None)).topics) == 2


async def test_metadata_with_neither_name_nor_id_is_refused(broker: FakeBroker, peer: Peer) -> None:
    types = request_types(3, 12)
    topics = (types.MetadataRequestTopic(name=None, topic_id=NO_ID),)
    peer.send(3, 12, topics=topics, include_topic_authorized_operations=False)
    assert await peer.closed()


@pytest.mark.parametrize("version", versions(10))
async def test_find_coordinator(broker: FakeBroker, peer: Peer, version: int) -> None:
    if version >= 4:
        answer = await peer.ask(10, version, key_type=0, coordinator_keys=("g", "h"))
        assert [(c.key, c.error_code.value) for c in answer.coordinators] == [("g", 0), ("h", 0)]
        assert {(c.node_id, c.host, c.port) for c in answer.coordinators} == {(0, "127.0.0.1", broker.port)}
    else:
        answer = await peer.ask(10, version, key="g", **({"key_type": 0} if version else {}))
        assert (answer.error_code.value, answer.node_id, answer.port) == (0, 0, broker.port)


@pytest.mark.parametrize(("key_type", "code"), [(1, 15), (2, 42)])
async def test_a_coordinator_that_cannot_be_found(peer: Peer, key_type: int, code: int) -> None:
    answer = await peer.ask(10, 6, key_type=key_type, coordinator_keys=("t",))
    assert [(c.error_code.value, c.node_id) for c in answer.coordinators] == [(code, -1)]


@pytest.mark.parametrize("version", versions(18))
async def test_api_versions_lists_the_table(peer: Peer, version: int) -> None:
    more = {"client_software_name": "peer", "client_software_version": "1"} if version >= 3 else {}
    answer = await peer.ask(18, version, **more)
    listed = {a.api_key: (a.min_version, a.max_version) for a in answer.api_keys}
    assert listed[0] == (0, 13), "librdkafka stops compressing if Produce does not start at 0"
    assert listed[1] == (4, 18)
    assert set(listed) == set(APIS)


async def test_api_versions_of_the_future_is_answered_in_version_0(broker: FakeBroker, peer: Peer) -> None:
    peer.writer.write(bytes.fromhex("00000010 0012 0063 0000002a ffff 00") + b"\x05abcd")
    peer._sent.append((18, 0, 42))
    answer = await peer.receive()
    assert answer.error_code.value == 35
    assert {a.api_key for a in answer.api_keys} == set(APIS)
    assert (await peer.ask(18, 0)).error_code.value == 0, "the connection lives on"


@pytest.mark.parametrize("version", versions(22))
async def test_init_producer_id(peer: Peer, version: int) -> None:
    more: dict[str, Any] = {"producer_id": -1, "producer_epoch": -1} if version >= 3 else {}
    if version >= 6:
        more |= {"enable2_pc": False, "keep_prepared_txn": False}
    answer = await peer.ask(22, version, transactional_id=None, transaction_timeout=SECOND, **more)
    assert (answer.error_code.value, answer.producer_id, answer.producer_epoch) == (0, 1, 0)


@pytest.mark.parametrize("version", versions(23))
async def test_offset_for_leader_epoch(broker: FakeBroker, peer: Peer, version: int) -> None:
    broker.services.add_topic("t")
    broker.services.records.append(TopicPartition("t", 0), batch(b"a"), 1)
    types = request_types(23, version)
    partitions = tuple(
        types.OffsetForLeaderPartition(partition=i, current_leader_epoch=-1, leader_epoch=0) for i in (0, 9)
    )
    topics = (types.OffsetForLeaderTopic(topic="t", partitions=partitions),)
    answer = await peer.ask(23, version, topics=topics, **({"replica_id": -1} if version >= 3 else {}))
    assert [(p.error_code.value, p.end_offset) for p in answer.topics[0].partitions] == [(0, 1), (3, -1)]
