"""Hostile bytes against an edge in a process of its own: that process lives, others notice nothing, memory
stays.

A fixed small budget by default; OTTLA_FUZZ_SECONDS asks for more. The seed is printed on failure by
pytest-randomly.
"""

from __future__ import annotations

import asyncio
import os
import random
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from broker.edge.kafka_batches import batch
from broker.edge.kafka_child import REQUEST_MAX_BYTES
from broker.edge.kafka_peer import Peer
from broker.edge.test_kafka_codec import EVERY_VERSION, struct_for
from broker.edge.test_kafka_handlers import fetch_fields, produce_fields
from ottla_broker.edge.kafka import schema
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.versions import APIS, Api

pytestmark = pytest.mark.integration

FUZZ_SECONDS = float(os.environ.get("OTTLA_FUZZ_SECONDS", "3"))
RSS_GROWTH_MAX = 150 << 20
HERE = Path(__file__).parent


class Child:
    def __init__(self, process: asyncio.subprocess.Process, port: int, bugs: Path) -> None:
        self.process = process
        self.port = port
        self.bugs = bugs
        self.answers = 0
        self._rss = psutil.Process(process.pid).memory_info().rss
        self._pinger: asyncio.Task[None] | None = None

    async def ping_forever(self) -> None:
        """A healthy client: writes, reads back what it wrote, and must never wait long nor be cut off."""
        peer = await Peer.connect(self.port)
        try:
            while True:
                await self._ping(peer)
                await asyncio.sleep(0.02)
        finally:
            peer.close()

    async def _ping(self, peer: Peer) -> None:
        value = f"healthy {self.answers}".encode()
        answer = await peer.ask(0, 9, **produce_fields(9, "t", {1: batch(value)}))
        offset = answer.responses[0].partition_responses[0].base_offset
        found = await peer.ask(1, 12, **fetch_fields(12, "t", {1: offset}))
        assert value in found.responses[0].partitions[0].records
        self.answers += 1

    async def check(self) -> None:
        """The same process, well, and not swollen."""
        assert self.process.returncode is None, "the edge's process died"
        peer = await Peer.connect(self.port)
        await peer.ask(18, 0)
        peer.close()
        assert self._pinger is not None
        if self._pinger.done():
            self._pinger.result()
        assert self.answers > 0
        grown = psutil.Process(self.process.pid).memory_info().rss - self._rss
        assert grown < RSS_GROWTH_MAX, f"{grown >> 20} MB more than at the start"
        assert self.bugs.read_text() == "", "an exception that no handler foresaw"


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    environ = os.environ | {"PYTHONPATH": str(HERE.parent.parent)}
    bugs = tmp_path / "bugs"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "kafka_child.py"),
        str(bugs),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environ,
    )
    assert process.stdout is not None and process.stdin is not None
    async with asyncio.timeout(20):
        port = int(await process.stdout.readline())
    made = Child(process, port, bugs)
    made._pinger = asyncio.ensure_future(made.ping_forever())
    yield made
    made._pinger.cancel()
    await asyncio.gather(made._pinger, return_exceptions=True)
    process.stdin.close()
    async with asyncio.timeout(10):
        await process.wait()


def header(api: Api, version: int, correlation_id: int = 1) -> bytes:
    made = struct.pack(">hhih", api.key, version, correlation_id, 4) + b"fuzz"
    return made + b"\x00" if version >= api.flexible_from else made


def valid_body(api: Api, version: int, chance: random.Random) -> bytes:
    plan = schema.load(api, version, "request")
    out = bytearray()
    compile_writer(plan)(out, struct_for(plan, chance))
    return bytes(out)


def framed(content: bytes, length: int | None = None) -> bytes:
    return struct.pack(">i", len(content) if length is None else length) + content


async def fire(port: int, frames: list[bytes], *, linger_s: float = 0.0) -> None:
    """Send on a fresh connection, one frame after the other, until it is cut; read what comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for frame in frames:
            writer.write(frame)
            await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(5 + linger_s):
            while await reader.read(1 << 16):
                pass
    except (ConnectionError, OSError):
        pass
    finally:
        writer.close()


async def fire_all(port: int, frames: Iterator[bytes], seconds: float) -> int:
    """Fire single frames from a few connections at a time until they or the time are used up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    fired = 0

    async def worker() -> None:
        nonlocal fired
        for frame in frames:
            await fire(port, [frame])
            fired += 1
            if loop.time() > deadline:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(worker())
    return fired


MAXIMAL = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff",
)


def maximal_counts(chance: random.Random) -> Iterator[bytes]:
    """Every API and version; every place of a valid request overwritten with the largest numbers there
    are."""

    places = [(api, version, at) for api, version in EVERY_VERSION for at in range(24)]
    chance.shuffle(places)
    for api, version, at in places:
        body = valid_body(api, version, chance)
        largest = chance.choice(MAXIMAL)
        yield framed(header(api, version) + body[:at] + largest + body[at + len(largest) :])


def cut_off(chance: random.Random) -> Iterator[bytes]:
    for api, version in EVERY_VERSION:
        content = header(api, version) + valid_body(api, version, chance)
        size = chance.randrange(len(content))
        yield framed(content[:size])
        yield framed(content[:size], len(content))  # promises more than it sends


def flipped_forever(chance: random.Random) -> Iterator[bytes]:
    while True:
        api, version = chance.choice(EVERY_VERSION)
        content = bytearray(header(api, version) + valid_body(api, version, chance))
        for _ in range(chance.choice((1, 1, 1, 3, 10))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        yield framed(bytes(content))


def random_forever(chance: random.Random) -> Iterator[bytes]:
    while True:
        content = chance.randbytes(chance.choice((0, 1, 7, 8, 10, 14, 61, 300, 5000)))
        if chance.random() < 0.5:
            content = header(*chance.choice(EVERY_VERSION)) + content
        yield framed(content)


async def test_maximal_counts_for_every_api_and_version(child: Child) -> None:
    await fire_all(child.port, maximal_counts(random.Random()), FUZZ_SECONDS)
    await child.check()


async def test_truncated_frames(child: Child) -> None:
    assert await fire_all(child.port, cut_off(random.Random()), FUZZ_SECONDS) > 20
    await child.check()


async def test_flipped_bits(child: Child) -> None:
    assert await fire_all(child.port, flipped_forever(random.Random()), FUZZ_SECONDS) > 20
    await child.check()


async def test_random_bytes(child: Child) -> None:
    assert await fire_all(child.port, random_forever(random.Random()), FUZZ_SECONDS) > 20
    await child.check()


async def test_oversized_frames(child: Child) -> None:
    for length in (REQUEST_MAX_BYTES + 1, 0x7FFFFFFF, -1, -(2**31)):
        await fire(child.port, [framed(header(APIS[3], 12), length)])
    # Many that claim the largest allowed size and send little of it: claims alone take no memory.
    writers = [(await asyncio.open_connection("127.0.0.1", child.port))[1] for _ in range(100)]
    for writer in writers:
        writer.write(framed(header(APIS[0], 9) + bytes(1000), REQUEST_MAX_BYTES))
    await asyncio.sleep(0.3)
    await child.check()
    for writer in writers:
        writer.close()


async def test_whole_requests_of_the_largest_size(child: Child) -> None:
    filler = bytes(REQUEST_MAX_BYTES - 100)
    ones = b"\x01" * (REQUEST_MAX_BYTES - 100)
    for api, version in ((APIS[0], 9), (APIS[3], 12), (APIS[3], 1), (APIS[1], 11), (APIS[19], 7)):
        for content in (filler, ones):
            await fire(child.port, [framed(header(api, version) + content)] * 2)
    await child.check()


@pytest.mark.parametrize("version", [3, 8, 9, 13])
async def test_batches_of_0_to_61_bytes(child: Child, version: int) -> None:
    chance = random.Random()
    whole = batch(b"x")
    peer = await Peer.connect(child.port)
    types = await peer.ask(3, 12, topics=None, include_topic_authorized_operations=False)
    topic = types.topics[0].topic_id if version >= 13 else "t"
    for size in range(62):
        for records in (whole[:size], chance.randbytes(size), bytes(size)):
            answer = await peer.ask(0, version, **produce_fields(version, topic, {0: records}))
            assert answer.responses[0].partition_responses[0].error_code.value != 0
    answer = await peer.ask(0, version, **produce_fields(version, topic, {0: whole}))
    assert answer.responses[0].partition_responses[0].error_code.value == 0
    peer.close()
    await child.check()


async def test_unknown_tagged_fields_are_skipped_everywhere(child: Child) -> None:
    chance = random.Random()
    unknown = b"\x02\x63\x03abc\xe9\x07\x00"  # tags 99 and 1001
    for api, version in EVERY_VERSION:
        if version < api.flexible_from or api.key == 1:
            continue  # a random fetch may wait for its data
        plan = schema.load(api, version, "request")
        if any(field.tag is not None for field in plan.fields):
            continue  # the last byte is not the count of tagged fields then
        body = valid_body(api, version, chance)
        assert body[-1] == 0
        content = header(api, version)[:-1] + unknown + body[:-1] + unknown
        reader, writer = await asyncio.open_connection("127.0.0.1", child.port)
        # A request with acks=0, or one the handler refuses by closing, has no answer; this one always has.
        writer.write(framed(content) + framed(header(APIS[18], 0)))
        async with asyncio.timeout(5):
            first = await reader.read(8)
        assert api.key == 0 or len(first) == 8, f"{api.name} v{version} did not survive unknown tagged fields"
        writer.close()
    await child.check()


async def test_unknown_apis_and_versions(child: Child) -> None:
    for key, version in ((-1, 0), (9999, 0), (4, 0), (0, 0), (0, 2), (0, 99), (1, -1), (18, -1), (3, 32767)):
        await fire(child.port, [framed(struct.pack(">hhih", key, version, 1, -1) + bytes(20))])
    await child.check()


async def test_many_connections_that_say_nothing(child: Child) -> None:
    writers = [(await asyncio.open_connection("127.0.0.1", child.port))[1] for _ in range(300)]
    for writer in writers:
        writer.write(b"\x00\x00")
    await child.check()
    for writer in writers:
        writer.close()
