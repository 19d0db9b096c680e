"""Subscriptions and assignments are Kafka's own bytes, and hostile ones are refused."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.consumer_protocol_assignment.v1.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription as SubscriptionV0
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription
from kio.serial import entity_reader, entity_writer

from budget import examples
from ottla_client.group_protocol import (
    Subscription,
    Undecodable,
    decode_assignment,
    decode_generation,
    decode_sticky_data,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_sticky_data,
    encode_subscription,
)
from ottla_core.ids import TopicPartition

names = st.text("abcdefghij.-_", min_size=1, max_size=12)
partitions = st.lists(st.builds(TopicPartition, names, st.integers(0, 999)), max_size=20, unique=True)
subscriptions = st.builds(
    Subscription,
    st.lists(names, max_size=6, unique=True).map(lambda made: tuple(sorted(made))),
    st.none() | st.binary(max_size=40),
    partitions.map(lambda made: tuple(sorted(made))),
    st.integers(-1, 2**31 - 1),
    st.none() | names,
)


@settings(deadline=None, max_examples=examples(50))
@given(subscriptions)
def test_a_subscription_is_what_kafkas_schema_says(said: Subscription) -> None:
    data = encode_subscription(said)
    assert data[:2] == b"\x00\x03"
    read, size = entity_reader(ConsumerProtocolSubscription)(data[2:], 0)
    assert size == len(data) - 2
    assert tuple(read.topics) == said.topics and read.user_data == said.user_data
    owned = tuple(TopicPartition(each.topic, n) for each in read.owned_partitions for n in each.partitions)
    assert (owned, read.generation_id, read.rack_id) == (said.owned, said.generation, said.rack)
    assert decode_subscription(data) == said


@settings(deadline=None, max_examples=examples(50))
@given(partitions, st.none() | st.binary(max_size=40))
def test_an_assignment_is_what_kafkas_schema_says(given_: list[TopicPartition], extra: bytes | None) -> None:
    data = encode_assignment(given_, extra)
    assert data[:2] == b"\x00\x01"
    read, size = entity_reader(ConsumerProtocolAssignment)(data[2:], 0)
    assert size == len(data) - 2 and read.user_data == extra
    there = [TopicPartition(each.topic, n) for each in read.assigned_partitions for n in each.partitions]
    assert there == sorted(given_) == decode_assignment(data)


def test_old_and_newer_versions_are_read() -> None:
    buffer = io.BytesIO()
    entity_writer(SubscriptionV0)(buffer, SubscriptionV0(topics=("a", "b"), user_data=b"x"))
    assert decode_subscription(b"\x00\x00" + buffer.getvalue()) == Subscription(("a", "b"), b"x")
    newer = b"\x00\x07" + encode_subscription(Subscription(("a",), generation=5))[2:] + b"more"
    assert decode_subscription(newer) == Subscription(("a",), generation=5)
    assert decode_assignment(b"") == []


@settings(deadline=None, max_examples=examples(50))
@given(subscriptions, partitions, st.data())
def test_damaged_bytes_are_refused_and_nothing_else(
    said: Subscription, given_: list[TopicPartition], data: st.DataObject
) -> None:
    for whole, decode in (
        (encode_subscription(said), decode_subscription),
        (encode_assignment(given_), decode_assignment),
    ):
        cut = data.draw(st.integers(1, len(whole) - 1))
        with pytest.raises(Undecodable):
            decode(whole[:cut])
        torn = bytearray(whole)
        torn[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        try:
            decode(bytes(torn))
        except Undecodable:
            continue


def test_user_data_of_the_sticky_assignors() -> None:
    previous = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
    assert decode_sticky_data(encode_sticky_data(previous, 7)) == (previous, 7)
    assert decode_sticky_data(encode_sticky_data(previous, 7)[:-4]) == (previous, -1)
    assert decode_sticky_data(b"\x7f\xff\xff\xff") == ([], -1)
    assert decode_sticky_data(None) == ([], -1)
    assert decode_generation(encode_generation(9)) == 9
    assert decode_generation(None) == decode_generation(b"x") == -1
