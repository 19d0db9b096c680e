"""A Kafka client of a few lines: raw frames, encoded by kio, so that our own codec is not its own judge."""

from __future__ import annotations

import asyncio
import io
import struct
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32


def request_frame(key: int, version: int, correlation_id: int, fields: dict[str, Any]) -> bytes:
    schema = load_request_schema(key, version)
    header = schema.__header_schema__(
        request_api_key=i16(key),
        request_api_version=i16(version),
        correlation_id=i32(correlation_id),
        client_id="peer",
    )
    out = io.BytesIO()
    entity_writer(schema.__header_schema__)(out, header)
    entity_writer(schema)(out, schema(**fields))
    return struct.pack(">i", len(out.getvalue())) + out.getvalue()


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0
        self._sent: list[tuple[int, int, int]] = []

    @classmethod
    async def connect(cls, port: int) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, key: int, version: int, /, **fields: Any) -> None:
        self._correlation_id += 1
        self._sent.append((key, version, self._correlation_id))
        self.writer.write(request_frame(key, version, self._correlation_id, fields))

    async def receive(self, timeout_s: float = 5.0) -> Any:
        """The answer to the oldest request that has none yet."""
        key, version, correlation_id = self._sent.pop(0)
        async with asyncio.timeout(timeout_s):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            body = await self.reader.readexactly(size)
        schema = load_response_schema(key, version)
        view = memoryview(body).toreadonly()
        header, at = entity_reader(schema.__header_schema__)(view, 0)
        assert header.correlation_id == correlation_id
        answer, read = entity_reader(schema)(view, at)
        assert at + read == size, "bytes are left over after the answer"
        return answer

    async def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        self.send(key, version, **fields)
        return await self.receive()

    async def closed(self, timeout_s: float = 30.0) -> bool:
        """Whether the broker ended the connection, without another byte; it is then closed here as well."""
        async with asyncio.timeout(timeout_s):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True
            finally:
                self.close()

    def close(self) -> None:
        self.writer.close()
