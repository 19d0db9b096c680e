"""Record batches that no reader could use, and transactions that nobody would end: a real broker takes none of them.

After each refusal the next offset is the one before it, and a stock consumer reads what came after.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator

import pytest

from attack import effort
from attack.kafka_wire import HostileClient, code
from attack.victim import MemoryWatch, Victim, write
from cluster.steady_writer import read_all
from ottla_cli.local_cluster import LocalCluster
from ottla_core.records.batch import reseal
from ottla_core.records.codec import Record, build_batch
from ottla_core.records.compression import Compression, compress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LATEST = -1
GROWTH_MAX = 50 << 20
#: CORRUPT_MESSAGE, INVALID_RECORD, INVALID_REQUEST, UNSUPPORTED_COMPRESSION_TYPE.
REFUSALS = {2, 87, 42, 76}
HEADER = 61
_ATTRIBUTES, _LAST_DELTA, _PRODUCER_ID, _COUNT = 21, 23, 43, 57
_TRANSACTIONAL, _DELETE_HORIZON = 0x10, 0x40


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with LocalCluster() as cluster:
        made = Victim(cluster)
        made.create("ordinary", 1)
        yield made


def _batch(records: int = 1, compression: Compression = Compression.NONE) -> bytearray:
    made = [Record(number, 1000, b"k", b"v%d" % number, []) for number in range(records)]
    return bytearray(build_batch(made, compression=compression))


def _sealed(made: bytearray) -> bytes:
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    reseal(made, 0, len(made))
    return bytes(made)


def _counted(count: int) -> bytes:
    made = _batch()
    struct.pack_into(">i", made, _COUNT, count)
    struct.pack_into(">i", made, _LAST_DELTA, count - 1)
    return _sealed(made)


def _with_payload(payload: bytes, count: int = 1, codec: Compression = Compression.NONE) -> bytes:
    made = _batch()[:HEADER] + payload
    struct.pack_into(">i", made, _COUNT, count)
    struct.pack_into(">i", made, _LAST_DELTA, count - 1)
    struct.pack_into(">h", made, _ATTRIBUTES, int(codec))
    return _sealed(bytearray(made))


def _broken_gzip() -> bytes:
    packed = bytearray(compress(Compression.GZIP, bytes(_batch()[HEADER:])))
    packed[len(packed) // 2] ^= 0xFF
    return _with_payload(bytes(packed), codec=Compression.GZIP)


def _surplus() -> bytes:
    return _with_payload(bytes(_batch(5)[HEADER:]), count=2)


def _flagged(bits: int, producer_id: int = -1) -> bytes:
    made = _batch()
    struct.pack_into(">h", made, _ATTRIBUTES, bits)
    struct.pack_into(">qhi", made, _PRODUCER_ID, producer_id, 0 if producer_id >= 0 else -1, -1)
    return _sealed(made)


POISON: dict[str, Callable[[], bytes]] = {
    "a thousand records that are one": lambda: _counted(1000),
    "two billion records that are one": lambda: _counted(2**31 - 1),
    "an empty payload": lambda: _with_payload(b""),
    "garbage": lambda: _with_payload(b"\x13\x37" * 40),
    "broken gzip": _broken_gzip,
    "gzip of garbage": lambda: _with_payload(
        compress(Compression.GZIP, b"\x13\x37" * 40), codec=Compression.GZIP
    ),
    "more records than counted": _surplus,
    "producer id -2": lambda: _flagged(0, -2),
    "the delete horizon": lambda: _flagged(_DELETE_HORIZON),
    "undefined attributes": lambda: _flagged(0x4000),
    "a codec that does not exist": lambda: _flagged(7),
}


@pytest.mark.parametrize("name", POISON)
async def test_a_poisoned_batch_is_refused_and_nobody_gets_stuck(victim: Victim, name: str) -> None:
    topic = f"poison-{list(POISON).index(name)}"
    victim.create(topic, 1)
    client = await HostileClient.connect(victim.port())
    try:
        for acks in (-1, 1):
            answer = await client.produce(topic, POISON[name](), acks=acks)
            assert code(answer) in REFUSALS, f"{name}: {answer}"
        assert await client.list_offset(topic, LATEST) == 0, "a refused batch takes no offsets"
        write(victim.cluster.kafka_bootstrap, topic, 2, b"after")
        assert read_all(victim.cluster.kafka_bootstrap, topic, 1) == [b"after"] * 2
    finally:
        client.close()
    victim.close_look()


async def test_a_transactional_batch_without_a_transaction_is_refused(victim: Victim) -> None:
    victim.create("unended", 1)
    client = await HostileClient.connect(victim.port())
    try:
        made = bytearray(_flagged(_TRANSACTIONAL, 4711))
        struct.pack_into(">i", made, _PRODUCER_ID + 10, 0)
        batch = _sealed(made)
        for transactional in (None, "made-up"):
            answer = await client.produce("unended", batch, transactional=transactional)
            assert code(answer) != 0, answer
        write(victim.cluster.kafka_bootstrap, "unended", 2)
        committed = await client.list_offset("unended", LATEST, isolation=1)
        assert committed == await client.list_offset("unended", LATEST) == 2, "the last stable offset moves"
    finally:
        client.close()
    victim.close_look()


async def test_invented_producer_ids_stay_cheap(victim: Victim) -> None:
    """Idempotent batches under ever new ids, which Kafka takes, too: the table of producers is bounded."""
    victim.create("ids", 1)
    client = await HostileClient.connect(victim.port())
    batches = effort.count(5000, 1000)
    took_s = []
    try:
        with MemoryWatch(victim.pids[0]) as memory:
            for first in range(0, 3 * batches, batches):
                began = time.monotonic()
                for number in range(first, first + batches):
                    made = bytearray(_flagged(0, 1_000_000 + number))
                    struct.pack_into(">i", made, _PRODUCER_ID + 10, 0)
                    answer = await client.produce("ids", _sealed(made), acks=1)
                    assert (code(answer), answer.base_offset) == (0, number)
                took_s.append(time.monotonic() - began)
    finally:
        client.close()
    print(f"{batches} batches each: {[f'{s:.1f}' for s in took_s]} s, memory +{memory.grown >> 20} MB")
    assert took_s[-1] < 2 * took_s[0] + 2, "beyond the bound of the table each append costs more"
    assert memory.grown < GROWTH_MAX, f"{memory.grown >> 20} MB more than before"
    victim.close_look()
