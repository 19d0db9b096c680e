"""Keys and values of the metadata store: readable, versioned, and hard to break."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_broker.controller import keys
from ottla_broker.controller.image import BrokerImage, Endpoint, MemberImage, PartitionImage
from ottla_core.ports.store import Entry

ID = UUID("c0ffee00-0000-4000-8000-000000000001")
ids = st.uuids()
brokers = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
extras = st.sampled_from([(), (("later", {"deep": [1, "x"]}), ("also", None))])


def entry(key: str, value: bytes, revision: int = 7) -> Entry:
    return Entry(key, value, revision - 1, revision)


@given(ids)
def test_ids_are_spelt_as_kafka_spells_them(made: UUID) -> None:
    text = keys.uuid_text(made)
    assert len(text) == 22 and keys.uuid_from_text(text) == made


def test_one_known_spelling() -> None:
    assert keys.uuid_text(UUID(bytes=bytes(range(240, 256)))) == "8PHy8_T19vf4-fr7_P3-_w"


@pytest.mark.parametrize("text", ["", "short", "x" * 23, "ä" * 22, "=" * 22, "!" * 22])
def test_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(keys.BadValue):
        keys.uuid_from_text(text)


@given(ids, st.integers(0, 99_999))
def test_partition_keys_round_trip(topic_id: UUID, index: int) -> None:
    assert keys.partition_of(keys.partition(topic_id, index)) == (topic_id, index)


numbers = st.integers(-1, 99)
partitions = st.builds(PartitionImage, brokers, numbers, numbers, *[brokers] * 4, st.just(7), extras)


@given(partitions)
def test_partitions_round_trip_with_fields_of_a_newer_version(image: PartitionImage) -> None:
    assert keys.decode_partition(entry(keys.partition(ID, 3), keys.encode_partition(image))) == image


@given(ids, ids, st.one_of(st.none(), st.text(max_size=9)), extras)
def test_brokers_and_members_round_trip(one: UUID, two: UUID, rack: str | None, extra: tuple) -> None:
    endpoints = (Endpoint("public", "kafka", "broker-1.example", 9092), Endpoint("in", "grpc", "::1", 1))
    image = BrokerImage(5, one, endpoints, rack, 6, (one, two), (two,), extra, told_at=7)
    assert keys.decode_broker(entry("brokers/5", keys.encode_broker(image))) == image
    maimed = replace(image, stopping=True, offline={two: (0, 7)})
    assert keys.decode_broker(entry("brokers/5", keys.encode_broker(maimed))) == maimed
    member = MemberImage(5, one, (two,), 7, extra)
    assert keys.decode_member(entry("members/5", keys.encode_member(member))) == member


def test_values_can_be_read_by_people() -> None:
    value = keys.encode_partition(PartitionImage((1, 2), 1, 4, (1,), elr=(2,)))
    assert value == b'{"v":1,"replicas":[1,2],"leader":1,"epoch":4,"isr":[1],"elr":[2]}'
    dropped = keys.encode_partition(PartitionImage((1, 2), 1, 4, (1,), dropped=(2,)))
    assert dropped == b'{"v":1,"replicas":[1,2],"leader":1,"epoch":4,"isr":[1],"dropped":[2]}'
    topic = keys.encode_topic(ID, 3, {"retention.ms": "5"})
    text = keys.uuid_text(ID)
    assert json.loads(topic) == {"v": 1, "id": text, "partitions": 3, "config": {"retention.ms": "5"}}


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(keys.BadValue, match=r"topics/a .*format 2.*upgrade it"):
        keys.decode_topic(entry("topics/a", b'{"v":2,"id":"?"}'))


@pytest.mark.parametrize(
    "value",
    [
        b"", b"\xff", b"[]", b"7", b'"x"', b"{}", b'{"v":0}', b'{"v":"1"}', b'{"v":1}', b"[" * 9999,
        b'{"v":1,"replicas":"12","leader":1,"epoch":1}', b'{"v":1,"replicas":[true],"leader":1,"epoch":1}',
        b'{"v":1,"replicas":[1],"leader":null,"epoch":1}', b'{"v":1,"id":7,"partitions":1,"config":[]}',
        b'{"v":1,"id":"AAAAAAAAAAAAAAAAAAAAAA","partitions":999999999,"config":{}}',
    ],
)  # fmt: skip
def test_a_broken_value_names_its_key(value: bytes) -> None:
    for decode in (keys.decode_partition, keys.decode_topic, keys.decode_producer_block):
        with pytest.raises(keys.BadValue, match="some/key"):
            decode(entry("some/key", value))


anything = st.recursive(st.none() | st.integers() | st.text(max_size=30), st.lists, max_leaves=5)
objects = anything.map(
    lambda x: json.dumps({"v": 1, "incarnation": x, "endpoints": x, "directories": x, "config": x}).encode()
)


@settings(max_examples=examples(50))
@given(st.binary(max_size=80) | objects)
def test_no_value_raises_anything_else(value: bytes) -> None:
    made = entry("brokers/1", value)
    for decode in (keys.decode_broker, keys.decode_member, keys.decode_config, keys.decode_controller):
        try:
            decode(made)
        except keys.BadValue:
            continue


def test_all_brokers_have_a_name_of_their_own() -> None:
    assert keys.broker_config("") == "config/broker/default"
    assert keys.broker_config_of("config/broker/default") == ""
    assert keys.broker_config_of(keys.broker_config("12")) == "12"


def test_rewriting_keeps_what_a_newer_version_wrote() -> None:
    newer = b'{"v":1,"replicas":[1],"leader":1,"epoch":4,"isr":[1],"tier":{"remote":true}}'
    image = keys.decode_partition(entry(keys.partition(ID, 0), newer))
    again = json.loads(keys.encode_partition(replace(image, leader_epoch=5)))
    assert again["tier"] == {"remote": True} and again["epoch"] == 5
