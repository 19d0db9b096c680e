"""Records as objects: with serializers that have types, a type checker knows `record.value`.

python examples/typed_records.py 127.0.0.1:9192
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass

from ottla_client import Consumer, Producer, TopicPartition


@dataclass(frozen=True)
class Order:
    id: int
    item: str

    def write(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, data: bytes) -> Order:
        return cls(**json.loads(data))


async def main(address: str, topic: str) -> None:
    async with Producer(address, value_serializer=Order.write) as producer:
        await producer.send_and_wait(topic, Order(1, "ink"), partition=0)
        await producer.send_and_wait(topic, Order(2, "paper"), partition=0)

    async with Consumer(address, value_deserializer=Order.read, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        async for record in consumer:
            print(record.offset, record.value.item)  # Order: `record.value.itme` fails in mypy
            if record.value.id == 2:
                break


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["127.0.0.1:9192", "typed-orders"])))
