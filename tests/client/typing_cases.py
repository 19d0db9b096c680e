"""What type checkers say about programs that use the client: `test_client_types` runs mypy on this file.

Each line with an expected error names a part of the message of mypy in a comment.
"""

from __future__ import annotations

from typing import assert_type

from ottla_client import Consumer, ConsumerRecord, ConsumerSettings, Producer, sync


class Order:
    @staticmethod
    def parse(data: bytes) -> Order:
        return Order()

    def write(self) -> bytes:
        return b""


def key(data: bytes) -> str:
    return data.decode()


async def records_have_the_types_of_the_deserializers() -> None:
    consumer = Consumer(key_deserializer=key, value_deserializer=Order.parse)
    assert_type(await consumer.getone(), ConsumerRecord[str, Order])
    async for record in consumer:
        assert_type(record.value, Order)
    declared: Consumer[str, Order] = Consumer(key_deserializer="str", value_deserializer=Order.parse)
    for record in await declared.poll():
        record.value.wriet()  # error: "Order" has no attribute "wriet"


def blocking_records_too() -> None:
    with sync.Consumer("a:1", key_deserializer=key, value_deserializer=Order.parse) as consumer:
        for record in consumer:
            assert_type(record, ConsumerRecord[str, Order])


def without_deserializers_nothing_is_asked_of_the_caller() -> None:
    with sync.Consumer("a:1", group_id="g") as consumer:
        for record in consumer:
            record.value.decode()


async def values_have_the_type_of_the_serializer() -> None:
    producer = Producer(value_serializer=Order.write)
    await producer.send("orders", Order())
    await producer.send("orders", "text")  # error: has incompatible type "str"


def settings_are_checked() -> None:
    sync.Consumer("a:1", gruop_id="g")  # error: Unexpected keyword argument "gruop_id"
    Consumer("a:1", gruop_id="g")  # error: Unexpected keyword argument "gruop_id"
    sync.Producer("a:1", linger_ms="5")  # error: has incompatible type "str"
    sync.Admin("a:1", acks="all")  # error: Unexpected keyword argument "acks"
    settings: ConsumerSettings[str, Order] = {"group_id": "g", "value_deserializer": Order.parse}
    assert_type(sync.Consumer("a:1", **settings), sync.Consumer[str, Order])
