"""Sends one strange request at a time, and says what became of it: an answer that kio reads, or a closed connection.

Each request is followed by an honest one, whose answer shows that the connection still works: so a request that has no
answer (acks=0) is told from one that was forgotten.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from functools import cache
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import OutOfBoundValue

from ottla_broker.edge.kafka.versions import API_VERSIONS_KEY, Api

#: Longer than anything that was asked to wait, on a busy machine.
_PATIENCE_S = 20.0
#: For requests whose damaged bytes may ask for any time: Fetch, JoinGroup, SyncGroup.
_SHORT_PATIENCE_S = 0.2
_WAITING = (1, 11, 14)
_PRODUCE = 0
_DESCRIBE_TRANSACTIONS = 65
_SENTINEL = struct.pack(">ihhih", 10, API_VERSIONS_KEY, 0, -1, -1)
_UNKNOWN_SERVER_ERROR = -1
_MINUS_ONE = b"\xff\xff\xff\xff"


class BadAnswer(AssertionError):
    """The broker did neither answer nor close the connection."""


@cache
def _readers(key: int, version: int) -> tuple[Any, Any]:
    schema = load_response_schema(key, version)
    return entity_reader(schema.__header_schema__), entity_reader(schema)


def decoded(key: int, version: int, answer: bytes) -> Any:
    """All of it, or BadAnswer."""
    read_header, read_body = _readers(key, version)
    view = memoryview(answer).toreadonly()
    try:
        _, at = read_header(view, 0)
        made, size = read_body(view, at)
    except Exception as error:
        # As in Kafka, an idle transaction has the start time -1, for which kio has no value.
        is_idle = isinstance(error, OutOfBoundValue) and "negative timestamp" in str(error)
        if is_idle and key == _DESCRIBE_TRANSACTIONS:
            return None
        raise BadAnswer(f"{key} v{version} cannot be read: {error!r} {answer[:200]!r}") from error
    if at + size != len(answer):
        raise BadAnswer(f"{key} v{version}: {len(answer) - at - size} bytes are left over")
    return made


def mistakes(answer: object) -> bool:
    """Whether an answer says that the broker itself has failed."""
    for slot in getattr(answer, "__dataclass_fields__", ()):
        held = getattr(answer, slot)
        if slot == "error_code" and getattr(held, "value", held) == _UNKNOWN_SERVER_ERROR:
            return True
        if any(mistakes(inner) for inner in (held if isinstance(held, tuple) else (held,))):
            return True
    return False


class FuzzClient:
    def __init__(self, port: int, outcomes: Counter[str]) -> None:
        self._port = port
        self._outcomes = outcomes
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._number = 0

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def send(self, api: Api, version: int, body: bytes, *, may_wait: bool = False) -> Any:
        """The decoded answer; None if there is none."""
        if self._streams is None:
            self._streams = await self._connect()
        reader, writer = self._streams
        self._number = (self._number + 1) % (1 << 30)
        head = struct.pack(">hhih", api.key, version, self._number, -1)
        head += b"\x00" if version >= api.flexible_from else b""
        patience_s = _SHORT_PATIENCE_S if may_wait and api.key in _WAITING else _PATIENCE_S
        what = f"{api.name} v{version} {body[:300].hex()}"
        try:
            writer.write(struct.pack(">i", len(head) + len(body)) + head + body + _SENTINEL)
            async with asyncio.timeout(patience_s):
                first = await self._frame(reader)
                if first.startswith(_MINUS_ONE):
                    if api.key != _PRODUCE:
                        raise BadAnswer(f"no answer to {what}")
                    self._outcomes["unanswered"] += 1
                    return None
                if first[:4] != struct.pack(">i", self._number):
                    raise BadAnswer(f"an answer to something else, not to {what}")
                answer = decoded(api.key, version, first)
                second = await self._frame(reader)
            if not second.startswith(_MINUS_ONE):
                raise BadAnswer(f"two answers to {what}")
            self._outcomes["answered"] += 1
            return answer
        except (ConnectionError, asyncio.IncompleteReadError):
            self._outcomes["closed"] += 1
            self.close()
            return None
        except TimeoutError:
            self.close()
            if patience_s == _PATIENCE_S:
                raise BadAnswer(f"neither answered nor closed in {patience_s:.0f} s: {what}") from None
            self._outcomes["waits"] += 1
            return None

    async def _frame(self, reader: asyncio.StreamReader) -> bytes:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None
