"""Kafka's five compression types, by their numbers, with bounded output. [P]

Only `records.codec` calls it on a hot path: brokers store batches as received. The reader of a batch
sets a limit; a larger output is `MessageTooLarge`, and invalid input is
`CorruptMessage`. In both cases the batch is refused and the process is not harmed.

How the limit holds: output goes into a buffer of fixed size, and a codec that needs more fails. The first
size is the declared one, if there is one and the compression ratio is plausible, else
a guess that grows fourfold. So a small batch never allocates the whole limit, and data is
inflated at most 1.33 times. (zstd also reserves its window of up to 128 MB; untouched pages cost
nothing, and no more pages are written than there is output.)

We write what all clients can read: Java refuses lz4 frames with dependent blocks, and
needs xerial's framing for snappy, which it also writes; librdkafka writes bare snappy. We read both.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum

import cramjam

from ottla_core.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType
from ottla_core.ports.disk import Buffer


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> Compression:
        """The type by Kafka's lower-case name, as in `compression.type`."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(one.name.lower() for one in cls)
            raise UnsupportedCompressionType(f"Unknown compression {name!r}; choose from {known}.") from None


#: Kafka's levels, except for lz4: above level 2 it takes ten times as long for a tenth fewer bytes.
DEFAULT_LEVELS = {Compression.GZIP: 6, Compression.LZ4: 1, Compression.ZSTD: 3}

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
#: Java's block size.
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")

#: Maximum possible expansion per compressed byte.
_EXPANSION_MAX = {Compression.GZIP: 1040, Compression.SNAPPY: 32, Compression.LZ4: 260}
_FIRST_GUESS_EXPANSION = 8
_FIRST_GUESS_BYTES_MIN = 4096
_GROWTH = 4

_GZIP_FORMAT = 31  # zlib's wbits: a 32 KB window inside a gzip header and trailer.
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress with a level as in Kafka's `compression.<name>.level`; ignored if the codec has none."""
    if level is None:
        level = DEFAULT_LEVELS.get(codec, 0)  # type: ignore[call-overload]
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return zlib.compress(data, level, _GZIP_FORMAT)
    if codec == Compression.SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec == Compression.LZ4:
        stream = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        stream.compress(bytes(data))  # it accepts only bytes
        return bytes(stream.finish())
    if codec == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    raise _unsupported(codec)


def decompress(codec: int, data: Buffer, limit_bytes: int) -> bytes:
    """The decompressed data. Raises MessageTooLarge, CorruptMessage, UnsupportedCompressionType."""
    buffer, size = decompress_framed(codec, data, limit_bytes)
    return bytes(memoryview(buffer)[:size])


def decompress_framed(
    codec: int, data: Buffer, limit_bytes: int, *, lead_bytes: int = 0, trail_bytes: int = 0
) -> tuple[bytearray, int]:
    """Decompress without a copy, into a buffer with room before and zeros after: (buffer, size of the data).

    The buffer may be longer than lead, data and trail together.
    """
    if codec == Compression.NONE:
        if len(data) > limit_bytes:
            raise _too_large(limit_bytes)
        return bytearray(lead_bytes) + data + bytes(trail_bytes), len(data)
    if codec == Compression.SNAPPY:
        return _decompress_snappy(memoryview(data), limit_bytes, lead_bytes, trail_bytes)
    inflate = _INFLATERS.get(codec)
    if inflate is None:
        raise _unsupported(codec)
    room, most = _first_room(codec, data, limit_bytes)
    while True:
        buffer = bytearray(lead_bytes + room + trail_bytes)
        with memoryview(buffer) as whole, whole[lead_bytes : lead_bytes + room] as middle:
            size = _call(inflate, data, middle)
        if size is not None and size <= limit_bytes:
            return buffer, size
        if size is not None or room >= most:
            raise _too_large(limit_bytes)
        room = min(room * _GROWTH, most)


def _first_room(codec: int, data: Buffer, limit_bytes: int) -> tuple[int, int]:
    """The first buffer size to try, and the maximum."""
    most = limit_bytes
    if codec in _EXPANSION_MAX:
        most = min(most, len(data) * _EXPANSION_MAX[Compression(codec)] + 64)
    declared = _declared_size(codec, data)
    if declared is not None and codec == Compression.ZSTD and declared > limit_bytes:
        raise _too_large(limit_bytes)
    room = max(_FIRST_GUESS_BYTES_MIN, len(data) * _FIRST_GUESS_EXPANSION)
    if declared is not None and declared <= 64 * room:
        # A wrong size costs a second attempt, or memory in proportion to the input.
        room = declared
    return max(1, min(room, most)), max(1, most)


def _declared_size(codec: int, data: Buffer) -> int | None:
    if codec == Compression.GZIP and len(data) >= 18:
        return int.from_bytes(data[-4:], "little")
    if codec == Compression.ZSTD and len(data) >= 14 and data[:4] == _ZSTD_MAGIC:
        # RFC 8878, 3.1.1.1: the first two bits of the descriptor say how long the content size is.
        descriptor = data[4]
        single_segment = descriptor >> 5 & 1
        size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        start = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
        if size_bytes:
            size = int.from_bytes(data[start : start + size_bytes], "little")
            return size + 256 if size_bytes == 2 else size
    return None


def _call(inflate: object, data: Buffer, into: memoryview) -> int | None:
    """Bytes written, or None if the buffer was too small."""
    try:
        return int(inflate(data, into))  # type: ignore[operator]
    except cramjam.DecompressionError as error:
        # Rust's message for a full output buffer; a test checks that cramjam still uses it.
        if "whole buffer" in str(error):
            return None
        raise CorruptMessage(f"The records do not decompress: {error}.") from None
    except BaseException as error:
        # A Rust panic arrives as a BaseException that cannot be imported; treat it as a corrupt batch.
        if type(error).__name__ == "PanicException":
            raise CorruptMessage("The records do not decompress.") from None
        raise


_INFLATERS: dict[int, object] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_BLOCK_SIZE.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(
    data: memoryview, limit_bytes: int, lead_bytes: int, trail_bytes: int
) -> tuple[bytearray, int]:
    """Every block declares its size, so all sizes are checked before anything is allocated."""
    blocks = list(_snappy_blocks(data))
    total = sum(size for _, size in blocks)
    if total > limit_bytes:
        raise _too_large(limit_bytes)
    buffer = bytearray(lead_bytes + total + trail_bytes)
    position = lead_bytes
    with memoryview(buffer) as whole:
        for block, size in blocks:
            with whole[position : position + size] as middle:
                if size and _call(cramjam.snappy.decompress_raw_into, block, middle) != size:
                    raise CorruptMessage("A snappy block has another size than it declares.")
            position += size
    return buffer, total


def _snappy_blocks(data: memoryview) -> Iterator[tuple[memoryview, int]]:
    """Each block with the size that it declares."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield data, _snappy_size(data)
        return
    position, end = len(_XERIAL_HEADER), len(data)
    while position < end:
        if end - position < _BLOCK_SIZE.size:
            raise CorruptMessage("A snappy block is cut off.")
        (size,) = _BLOCK_SIZE.unpack_from(data, position)
        position += _BLOCK_SIZE.size
        if not 0 < size <= end - position:
            raise CorruptMessage(f"A snappy block declares {size} bytes; {end - position} are left.")
        block = data[position : position + size]
        yield block, _snappy_size(block)
        position += size


def _snappy_size(block: memoryview) -> int:
    try:
        size = int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"The records do not decompress: {error}.") from None
    if size > len(block) * _EXPANSION_MAX[Compression.SNAPPY]:
        raise CorruptMessage(f"A snappy block of {len(block)} bytes cannot hold {size}.")
    return size


def _unsupported(codec: int) -> Exception:
    return UnsupportedCompressionType(f"Compression type {codec} is unknown; Kafka's are 0 to 4.")


def _too_large(limit_bytes: int) -> Exception:
    return MessageTooLarge(f"The records decompress to more than {limit_bytes} bytes.")
