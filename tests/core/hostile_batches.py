"""A process that reads hostile batches and must live: run by `test_hostile_batches.py`, prints what it saw.

Every input gives records or one of our errors. Anything else, a signal included, is a failure of the process.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import resource
import struct
import sys
from collections import Counter
from collections.abc import Iterator

from ottla_core.errors import RequestError
from ottla_core.records.batch import (
    HEADER_BYTES,
    complete_batches,
    header_at,
    reseal,
    whole_batches,
)
from ottla_core.records.codec import Record, build_batch, records_of
from ottla_core.records.compression import Compression

LIMIT_BYTES = 1 << 20
seen: Counter[str] = Counter()


def samples() -> list[bytearray]:
    records = [
        Record(
            n, 1_000 + n * 7, b"key" * (n % 3) or None, b"value %d" % n * (n % 4), [("h", b"x"), ("n", None)]
        )
        for n in range(12)
    ]
    return [build_batch(records, compression=codec) for codec in Compression]


def attempt(data: bytes | bytearray | memoryview) -> None:
    for split in (whole_batches, complete_batches):
        try:
            for position, header in split(data):
                records = records_of(data, position, header, limit_bytes=LIMIT_BYTES)
                assert len(records) == header.count
                seen["read"] += 1
        except RequestError as error:
            seen[error.name] += 1


def read_anyway(data: bytes | bytearray | memoryview) -> None:
    """As somebody would who has checked nothing but that a header is there."""
    try:
        records_of(data, 0, header_at(data), limit_bytes=LIMIT_BYTES)
        seen["read"] += 1
    except RequestError as error:
        seen[error.name] += 1


def sealed(batch: bytearray) -> bytearray:
    """With a true length and CRC, so that only what is inside is wrong."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    reseal(batch, 0, len(batch))
    return batch


def short_ones() -> Iterator[bytearray]:
    for batch in samples():
        for size in range(HEADER_BYTES + 2):
            yield batch[:size]
            if size >= HEADER_BYTES:
                yield sealed(batch[:size])
    yield from (bytearray(size) for size in range(HEADER_BYTES + 2))
    yield from (bytearray(b"\xff" * size) for size in range(HEADER_BYTES + 2))


def extreme_fields() -> Iterator[bytearray]:
    """Every header field at its extremes, in every compression."""
    fields = (
        (8, "i"),
        (21, "h"),
        (23, "i"),
        (27, "q"),
        (35, "q"),
        (43, "q"),
        (51, "h"),
        (53, "i"),
        (57, "i"),
    )
    for batch in samples():
        for position, form in fields:
            bits = struct.calcsize(form) * 8
            for value in (-(1 << bits - 1), -1, 0, 1, 61, (1 << bits - 1) - 1):
                made = bytearray(batch)
                struct.pack_into(">" + form, made, position, value)
                reseal(made, 0, len(made))
                yield made


def flipped(chance: random.Random, rounds: int) -> Iterator[bytearray]:
    batches = samples()
    for _ in range(rounds):
        made = bytearray(chance.choice(batches))
        for _ in range(chance.randrange(1, 6)):
            made[chance.randrange(HEADER_BYTES if chance.random() < 0.8 else 0, len(made))] = chance.choice(
                (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
            )
        if chance.random() < 0.3:
            del made[chance.randrange(HEADER_BYTES, len(made) + 1) :]
        yield sealed(made)


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def lying_sizes() -> Iterator[bytearray]:
    """Records whose own sizes and counts are as large, as negative or as endless as they can be."""
    header = samples()[0][:HEADER_BYTES]
    struct.pack_into(">i", header, 23, 0)
    struct.pack_into(">i", header, 57, 1)
    huge = [2**63 - 1, 2**63 - 40, 2**63 - 70, 2**62, 2**31, 2**31 - 1, 100, -1, -2, -(2**31), -(2**63)]
    endless = b"\x80" * 9, b"\xff" * 9, b"\xff" * 10, b"\xff" * 30
    for number in [*map(varint, huge), *endless]:
        start = b"\0\0\0"  # attributes, both deltas
        for body in (
            start + number,
            start + number + b"xyz",
            start + b"\x01" + number + b"xyz",
            start + b"\x01\x01" + number,
            start + b"\x01\x01" + number + b"\x02a\x02b",
            start + b"\x01\x01\x02" + number + b"abc",
            start + b"\x01\x01\x02\x02a" + number + b"abc",
            b"\0" + number + b"\0\x01\x01\0",
            b"\0\0" + number + b"\x01\x01\0",
        ):
            yield sealed(header + varint(len(body)) + body)
            yield sealed(header + varint(len(body) + 1) + body)
            yield sealed(header + number + body)


def at_the_edge_of_memory() -> int:
    """Batches that end where the next byte may not be read: one step too far is a signal, not an error."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    count = 0
    for batch in [*samples(), *lying_sizes()]:
        start = page - len(batch)
        memory[start:page] = bytes(batch)
        read_anyway(memoryview(memory)[start:page])
        count += 1
    return count


def main(seed: int, rounds: int) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    inputs = 0
    for source in (short_ones(), extreme_fields(), flipped(random.Random(seed), rounds), lying_sizes()):
        for data in source:
            inputs += 1
            attempt(bytes(data))
            if len(data) >= HEADER_BYTES:
                read_anyway(data)
    inputs += at_the_edge_of_memory()
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    print(f"inputs {inputs} read {seen['read']} corrupt {seen['CORRUPT_MESSAGE']} grown_kb {grown_kb}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
