"""Keys and values of the metadata store: readable, versioned, and hard to break."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_broker.acl import Entry as AclEntry
from ottla_broker.acl import Operation, Pattern, PatternType, Permission, ResourceType
from ottla_broker.authorizer import Rules
from ottla_broker.metadata.image import BrokerImage, Endpoint, MemberImage, PartitionImage
from ottla_broker.metadata.section import Family, Section, Single
from ottla_broker.metadata.sections.acls import ACLS
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.cluster import CLUSTER, RECOVERIES
from ottla_broker.metadata.sections.configs import BROKER_CONFIGS, GROUP_CONFIGS
from ottla_broker.metadata.sections.controller import CONTROLLER, Elected
from ottla_broker.metadata.sections.cordons import CORDONS
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_broker.metadata.sections.producer_ids import PRODUCER_BLOCK
from ottla_broker.metadata.sections.quotas import QUOTAS
from ottla_broker.metadata.sections.removals import REMOVALS, Removal
from ottla_broker.metadata.sections.scram_credentials import SCRAM_CREDENTIALS, CredentialId
from ottla_broker.metadata.sections.topics import TOPICS, StoredTopic
from ottla_broker.metadata.table import TABLE, section_of
from ottla_broker.metadata.values import BadValue, uuid_from_text, uuid_text
from ottla_broker.quota import Entity
from ottla_core.ports.store import Entry
from ottla_core.scram import Credential

ID = UUID("c0ffee00-0000-4000-8000-000000000001")
ids = st.uuids()
brokers = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
extras = st.sampled_from([(), (("later", {"deep": [1, "x"]}), ("also", None))])


def entry(key: str, value: bytes, revision: int = 7) -> Entry:
    return Entry(key, value, revision - 1, revision)


@given(ids)
def test_ids_are_spelt_as_kafka_spells_them(made: UUID) -> None:
    text = uuid_text(made)
    assert len(text) == 22 and uuid_from_text(text) == made


def test_one_known_spelling() -> None:
    assert uuid_text(UUID(bytes=bytes(range(240, 256)))) == "8PHy8_T19vf4-fr7_P3-_w"


@pytest.mark.parametrize("text", ["", "short", "x" * 23, "ä" * 22, "=" * 22, "!" * 22])
def test_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        uuid_from_text(text)


@given(ids, st.integers(0, 99_999))
def test_partition_keys_round_trip(topic_id: UUID, index: int) -> None:
    assert PARTITIONS.id_of(partition_key(topic_id, index)) == (topic_id, index)


numbers = st.integers(-1, 99)
partitions = st.builds(PartitionImage, brokers, numbers, numbers, *[brokers] * 4, st.just(7), extras)


@given(partitions)
def test_partitions_round_trip_with_fields_of_a_newer_version(image: PartitionImage) -> None:
    assert PARTITIONS.decode(entry(partition_key(ID, 3), PARTITIONS.encode(image))) == image


@given(ids, ids, st.one_of(st.none(), st.text(max_size=9)), extras)
def test_brokers_and_members_round_trip(one: UUID, two: UUID, rack: str | None, extra: tuple) -> None:
    endpoints = (Endpoint("public", "kafka", "broker-1.example", 9092), Endpoint("in", "grpc", "::1", 1))
    image = BrokerImage(5, one, endpoints, rack, 6, (one, two), (two,), extra, mod_revision=7)
    assert BROKERS.decode(entry("brokers/5", BROKERS.encode(image))) == image
    maimed = replace(image, stopping=True, offline={two: (0, 7)})
    assert BROKERS.decode(entry("brokers/5", BROKERS.encode(maimed))) == maimed
    member = MemberImage(5, one, (two,), 7, extra)
    for each in (member, replace(member, rack=rack)):
        assert MEMBERS.decode(entry("members/5", MEMBERS.encode(each))) == each


GOLDEN = [
    (CLUSTER, None, uuid_text(ID), "cluster", b'{"v":1,"id":"wP_uAAAAQACAAAAAAAAAAQ"}'),
    (
        CONTROLLER, None, Elected(1, ID), "controller",
        b'{"v":1,"broker":1,"incarnation":"wP_uAAAAQACAAAAAAAAAAQ"}',
    ),
    (
        BROKERS, 5, BrokerImage(5, ID, (Endpoint("k", "kafka", "h", 9092),), "a", directories=(ID,), stopping=True,
                                offline={ID: (0, 7)}), "brokers/5",
        b'{"v":1,"incarnation":"wP_uAAAAQACAAAAAAAAAAQ","endpoints":[{"listener":"k","protocol":"kafka","host":"h",'
        b'"port":9092}],"rack":"a","directories":["wP_uAAAAQACAAAAAAAAAAQ"],"torn":[],"stopping":true,'
        b'"offline":{"wP_uAAAAQACAAAAAAAAAAQ":[0,7]}}',
    ),
    (
        MEMBERS, 5, MemberImage(5, ID, (ID,)), "members/5",
        b'{"v":1,"incarnation":"wP_uAAAAQACAAAAAAAAAAQ","directories":["wP_uAAAAQACAAAAAAAAAAQ"]}',
    ),
    (
        MEMBERS, 5, MemberImage(5, ID, (ID,), rack="a"), "members/5",
        b'{"v":1,"incarnation":"wP_uAAAAQACAAAAAAAAAAQ","directories":["wP_uAAAAQACAAAAAAAAAAQ"],"rack":"a"}',
    ),
    (
        TOPICS, "a.b", StoredTopic(ID, 3, {"x": "\u00fc"}, (("later", 1),)), "topics/a.b",
        '{"v":1,"id":"wP_uAAAAQACAAAAAAAAAAQ","partitions":3,"config":{"x":"\u00fc"},"later":1}'.encode(),
    ),
    (
        PARTITIONS, (ID, 12), PartitionImage((1, 2), -1, 4, (1,), (2,), (3,), (2,), torn=(1,), dropped=(2,)),
        "partitions/wP_uAAAAQACAAAAAAAAAAQ/12",
        b'{"v":1,"replicas":[1,2],"leader":-1,"epoch":4,"isr":[1],"elr":[2],"adding":[3],"removing":[2],"torn":[1],'
        b'"dropped":[2]}',
    ),
    (BROKER_CONFIGS, "", {"a": "b"}, "config/broker/default", b'{"v":1,"config":{"a":"b"}}'),
    (BROKER_CONFIGS, "3", {"a": "b"}, "config/broker/3", b'{"v":1,"config":{"a":"b"}}'),
    (CORDONS, 3, (), "cordons/3", b'{"v":1}'),
    (
        QUOTAS, Entity("a b", ""), {"producer_byte_rate": 5.0}, "quotas/user=a%20b&client-id=",
        b'{"v":1,"quotas":{"producer_byte_rate":5.0}}',
    ),
    (
        ACLS, Pattern(ResourceType.GROUP, PatternType.PREFIXED, "a/b"),
        Rules([AclEntry("User:alice", "*", Operation.READ, Permission.ALLOW)]), "acls/GROUP/PREFIXED/a/b",
        b'{"v":1,"entries":[["User:alice","*","READ","ALLOW"]]}',
    ),
    (GROUP_CONFIGS, "g/1", {"a": "b"}, "config/groups/g/1", b'{"v":1,"config":{"a":"b"}}'),
    (REMOVALS, None, Removal(2, 1), "removals", b'{"v":1,"broker":2,"by":1}'),
    (PRODUCER_BLOCK, None, 1000, "ids/producer-block", b'{"v":1,"next":1000}'),
    (
        SCRAM_CREDENTIALS, CredentialId("SCRAM-SHA-256", "a/b"), Credential(b"salt", 4096, b"st", b"se"),
        "credentials/scram/SCRAM-SHA-256/a/b",
        b'{"v":1,"salt":"c2FsdA==","iterations":4096,"stored_key":"c3Q=","server_key":"c2U="}',
    ),
    (RECOVERIES, None, 1, "recoveries", b'{"v":1,"number":1}'),
]  # fmt: skip


@pytest.mark.parametrize(("section", "id_", "value", "key", "golden"), GOLDEN, ids=[row[3] for row in GOLDEN])
def test_the_format_in_the_store_never_changes(
    section: Section, id_: object, value: object, key: str, golden: bytes
) -> None:
    """Brokers of other releases, backups and `etcdctl` depend on it."""
    assert (section.key if isinstance(section, Single) else section.key(id_)) == key
    assert section.encode(value) == golden
    assert section_of(key) is section
    if isinstance(section, Family):
        assert section.id_of(key) == id_


def test_every_section_has_a_golden_value() -> None:
    assert set(TABLE) == {row[0] for row in GOLDEN}


def test_prefixes_do_not_overlap() -> None:
    for one in TABLE:
        assert [other for other in TABLE if other.owns(one.prefix + "1") and other is not one] == []


@pytest.mark.parametrize(
    "key", ["", "/", "acl/x", "controller/1", "controllers", "config/x", "ids/", "topic/a"]
)
def test_keys_of_other_versions_belong_to_no_section(key: str) -> None:
    assert section_of(key) is None


def test_values_can_be_read_by_people() -> None:
    value = PARTITIONS.encode(PartitionImage((1, 2), 1, 4, (1,), elr=(2,)))
    assert value == b'{"v":1,"replicas":[1,2],"leader":1,"epoch":4,"isr":[1],"elr":[2]}'
    dropped = PARTITIONS.encode(PartitionImage((1, 2), 1, 4, (1,), dropped=(2,)))
    assert dropped == b'{"v":1,"replicas":[1,2],"leader":1,"epoch":4,"isr":[1],"dropped":[2]}'
    topic = TOPICS.encode(StoredTopic(ID, 3, {"retention.ms": "5"}))
    text = uuid_text(ID)
    assert json.loads(topic) == {"v": 1, "id": text, "partitions": 3, "config": {"retention.ms": "5"}}


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadValue, match=r"topics/a .*format 2.*upgrade it"):
        TOPICS.decode(entry("topics/a", b'{"v":2,"id":"?"}'))


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
    for decode in (PARTITIONS.decode, TOPICS.decode, PRODUCER_BLOCK.decode):
        with pytest.raises(BadValue, match="some/key"):
            decode(entry("some/key", value))


anything = st.recursive(st.none() | st.integers() | st.text(max_size=30), st.lists, max_leaves=5)
objects = anything.map(
    lambda x: json.dumps({"v": 1, "incarnation": x, "endpoints": x, "directories": x, "config": x}).encode()
)


@settings(max_examples=examples(50))
@given(st.binary(max_size=80) | objects)
def test_no_value_raises_anything_else(value: bytes) -> None:
    made = entry("brokers/1", value)
    for decode in (BROKERS.decode, MEMBERS.decode, BROKER_CONFIGS.decode, CONTROLLER.decode):
        try:
            decode(made)
        except BadValue:
            continue


def test_all_brokers_have_a_name_of_their_own() -> None:
    assert BROKER_CONFIGS.key("") == "config/broker/default"
    assert BROKER_CONFIGS.id_of("config/broker/default") == ""
    assert BROKER_CONFIGS.id_of(BROKER_CONFIGS.key("12")) == "12"


def test_rewriting_keeps_what_a_newer_version_wrote() -> None:
    newer = b'{"v":1,"replicas":[1],"leader":1,"epoch":4,"isr":[1],"tier":{"remote":true}}'
    image = PARTITIONS.decode(entry(partition_key(ID, 0), newer))
    again = json.loads(PARTITIONS.encode(replace(image, leader_epoch=5)))
    assert again["tier"] == {"remote": True} and again["epoch"] == 5
