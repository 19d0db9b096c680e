"""A hostile Kafka client: raw frames, pipelined without end, read late or never."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from attack.fuzz_client import decoded
from ottla_bench.flood_requests import frame

PRODUCE, FETCH, METADATA, JOIN_GROUP, INIT_PRODUCER_ID = 0, 1, 3, 11, 22
CONSUMER_GROUP_HEARTBEAT = 68


class HostileClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> HostileClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, *frames: bytes) -> None:
        """Without waiting for anything."""
        self.writer.write(b"".join(frames))

    async def answer(self, key: int, version: int, timeout_s: float = 20.0) -> Any:
        """The next one, decoded by kio; it must be all that the schema says."""
        async with asyncio.timeout(timeout_s):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return decoded(key, version, await self.reader.readexactly(size))

    async def ask(self, key: int, version: int, timeout_s: float = 20.0, **fields: Any) -> Any:
        self.send(frame(key, version, fields))
        return await self.answer(key, version, timeout_s)

    async def produce(
        self,
        topic: str,
        records: bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        transactional: str | None = None,
    ) -> Any:
        """The answer for its one partition."""
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        answer = await self.ask(
            PRODUCE, 9, transactional_id=transactional, acks=acks, timeout=10_000, topic_data=data
        )
        return answer.responses[0].partition_responses[0]

    async def list_offset(self, topic: str, timestamp: int, *, isolation: int = 0, partition: int = 0) -> int:
        asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = await self.ask(2, 7, replica_id=-1, isolation_level=isolation, topics=topics)
        found = answer.topics[0].partitions[0]
        assert found.error_code.value == 0, found
        return int(found.offset)

    async def is_closed(self, timeout_s: float = 20.0) -> bool:
        async with asyncio.timeout(timeout_s):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.transport.abort()


def code(answer: Any) -> int:
    """The error code of an answer, or of one of its parts."""
    return int(answer.error_code.value)


def length(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload
