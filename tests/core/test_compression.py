"""Five codecs: what goes in comes out, never more than was allowed, whatever the bytes."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_core.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType
from ottla_core.records.compression import Compression, compress, decompress, decompress_framed

CODECS = list(Compression)
REAL_CODECS = CODECS[1:]


@given(data=st.binary(max_size=5000), repeats=st.integers(1, 40), codec=st.sampled_from(CODECS))
def test_round_trip(data: bytes, repeats: int, codec: Compression) -> None:
    data *= repeats
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(packed), len(data) + 1000) == data


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("size", [1, 4095, 4096, 32 * 1024, 65_537, 3_000_000])
def test_sizes_around_blocks_and_first_guesses(codec: Compression, size: int) -> None:
    data = bytes(size)
    packed = compress(codec, data)
    assert decompress(codec, packed, size) == data
    with pytest.raises(MessageTooLarge, match=f"more than {size - 1} bytes"):
        decompress(codec, packed, size - 1)


@pytest.mark.parametrize(
    ("codec", "levels"), [(Compression.GZIP, (1, 9)), (Compression.LZ4, (1, 12)), (Compression.ZSTD, (1, 19))]
)
def test_levels_trade_time_for_size(codec: Compression, levels: tuple[int, int]) -> None:
    data = b"".join(b'{"user": %d, "name": "someone %d"}' % (n * 7919 % 1000, n) for n in range(3000))
    low, high = (compress(codec, data, level) for level in levels)
    assert len(high) < len(low) < len(data)
    assert decompress(codec, low, 1 << 20) == decompress(codec, high, 1 << 20) == data


def test_lz4_blocks_are_independent_or_java_refuses() -> None:
    packed = compress(Compression.LZ4, bytes(200_000))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] >> 6 == 1  # version
    assert packed[4] & 0x20  # block independence


def test_snappy_is_written_framed_and_read_bare_too() -> None:
    data = b"some bytes " * 10_000
    packed = compress(Compression.SNAPPY, data)
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), 200_000) == data


def test_gzip_of_several_members_is_one_text() -> None:
    packed = zlib.compress(b"one ", 6, 31) + zlib.compress(b"two" * 2000, 6, 31)
    assert decompress(Compression.GZIP, packed, 10_000) == b"one " + b"two" * 2000


def test_zstd_without_a_declared_size() -> None:
    """Java streams: its frames do not say how large they become."""
    data = b"streamed " * 20_000
    stream = cramjam.zstd.Compressor(level=3)
    stream.compress(data)
    packed = bytes(stream.finish())
    assert decompress(Compression.ZSTD, packed, len(data)) == data
    with pytest.raises(MessageTooLarge):
        decompress(Compression.ZSTD, packed, len(data) - 1)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_small_batch_allocates_little_under_a_large_limit(codec: Compression) -> None:
    buffer, size = decompress_framed(codec, compress(codec, b"tiny"), 1 << 30, lead_bytes=61, trail_bytes=32)
    assert buffer[61 : 61 + size] == b"tiny"
    assert not any(buffer[:61]) and not any(buffer[61 + size :])
    assert len(buffer) < 10_000


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionType):
        decompress(codec, b"x", 10)
    with pytest.raises(UnsupportedCompressionType):
        compress(codec, b"x")


def test_names_are_kafkas() -> None:
    assert [Compression.named(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == CODECS
    with pytest.raises(UnsupportedCompressionType, match="'brotli'"):
        Compression.named("brotli")


@settings(max_examples=examples(300))
@given(
    codec=st.sampled_from(REAL_CODECS),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 60),
)
def test_damage_is_found_or_harmless(codec: Compression, flips: list[tuple[int, int]], cut: int) -> None:
    """Not every codec has a checksum, so wrong bytes may come out, but never too many and never another error."""
    damaged = bytearray(compress(codec, b"0123456789" * 500))
    for position, mask in flips:
        damaged[position % len(damaged)] ^= mask
    try:
        assert len(decompress(codec, damaged[: len(damaged) - cut], 6000)) <= 6000
    except (CorruptMessage, MessageTooLarge):
        pass


@settings(max_examples=examples(300))
@given(codec=st.sampled_from(REAL_CODECS), data=st.binary(max_size=200))
def test_noise_is_refused(codec: Compression, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, 1000)) <= 1000
    except (CorruptMessage, MessageTooLarge):
        pass


@pytest.mark.parametrize("declared", [2**31, 2**32 - 1, 33])
def test_a_snappy_block_cannot_claim_more_than_it_holds(declared: int) -> None:
    size, claim = declared, b""
    while size >= 0x80:
        claim += bytes([size & 0x7F | 0x80])
        size >>= 7
    bare = claim + bytes([size])
    framed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(bare)) + bare
    for data in (bare, framed):
        with pytest.raises(CorruptMessage):
            decompress(Compression.SNAPPY, data, 1 << 33)


@pytest.mark.parametrize("size", [0, -1, 2**31 - 1, 5])
def test_snappy_frames_with_lying_block_sizes(size: int) -> None:
    with pytest.raises(CorruptMessage):
        decompress(Compression.SNAPPY, b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, size) + b"abc", 1000)


_BOMBS = """
import resource, struct, sys, zlib
from ottla_core.errors import MessageTooLarge, CorruptMessage
from ottla_core.records.compression import compress, decompress

def zstd(window_log, blocks):
    rle = struct.pack("<I", (131072 << 3) | 2)[:3] + b"a"
    last = struct.pack("<I", (1 << 3) | 3)[:3] + b"a"
    return struct.pack("<I", 0xFD2FB528) + bytes([0, (window_log - 10) << 3]) + rle * blocks + last

gzip = zlib.compressobj(9, wbits=31)
bombs = [(1, b"".join(gzip.compress(bytes(1 << 20)) for _ in range(200)) + gzip.flush())]
bombs += [(4, zstd(log, 4000)) for log in (17, 21, 27, 28, 31)]
bombs += [(4, b"\\x28\\xb5\\x2f\\xfd\\xe0" + (1 << 60).to_bytes(8, "little") + b"x" * 9)]
bombs += [(3, compress(3, bytes(64 << 20))), (2, compress(2, bytes(64 << 20)))]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
refused = 0
for codec, data in bombs:
    try:
        decompress(codec, data, 4 << 20)
    except (MessageTooLarge, CorruptMessage):
        refused += 1
print(refused == len(bombs), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_bombs_cost_no_more_than_the_limit() -> None:
    """In a process of its own, where the peak of memory says something."""
    done = subprocess.run(
        [sys.executable, "-c", _BOMBS], capture_output=True, text=True, timeout=60, check=True
    )
    all_refused, grown_kb = done.stdout.split()
    assert all_refused == "True"
    assert int(grown_kb) < 32 * 1024
