"""Batches that stock producers wrote are read as what was sent, in every compression."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden.sample import CLIENTS, CODECS, records_by
from ottla_core.records.batch import HEADER_BYTES, header_at, verify, whole_batches
from ottla_core.records.codec import build_batch, records_of
from ottla_core.records.compression import Compression, decompress

BATCHES = Path(__file__).parents[1] / "golden" / "batches"


def golden(client: str, codec: str) -> bytes:
    return (BATCHES / f"{client}-{codec}.bin").read_bytes()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_they_wrote_is_what_we_read(client: str, codec: str) -> None:
    data = golden(client, codec)
    [(position, header)] = list(whole_batches(data))
    assert verify(data, position, header)
    assert header.compression == Compression.named(codec)
    assert header.count == len(records_by(client))
    assert records_of(data, position, header, limit_bytes=100_000) == records_by(client)


@pytest.mark.parametrize("client", CLIENTS)
def test_we_write_the_same_bytes_when_nothing_is_compressed(client: str) -> None:
    theirs = bytearray(golden(client, "none"))
    # aiokafka puts sequence 0 where there is no producer id.
    ours = build_batch(records_by(client), base_sequence=header_at(theirs).base_sequence)
    # A producer's base offset and leader epoch mean nothing; a broker sets them.
    theirs[0:8] = ours[0:8]
    theirs[12:16] = ours[12:16]
    assert theirs == ours


def test_both_framings_of_snappy_are_among_them() -> None:
    framed = {
        client: golden(client, "snappy")[HEADER_BYTES:].startswith(b"\x82SNAPPY\0") for client in CLIENTS
    }
    assert framed == {"java": True, "aiokafka": True, "kafka-python": True, "librdkafka": False}


def test_our_snappy_blocks_are_cut_like_javas() -> None:
    theirs = golden("java", "snappy")
    plain = decompress(Compression.SNAPPY, theirs[HEADER_BYTES:], 100_000)
    ours = bytes(build_batch(records_by("java"), compression=Compression.SNAPPY))
    assert decompress(Compression.SNAPPY, ours[HEADER_BYTES:], 100_000) == plain
    assert _block_count(ours[HEADER_BYTES:]) == _block_count(theirs[HEADER_BYTES:]) == 2


def _block_count(data: bytes) -> int:
    position, blocks = 16, 0
    while position < len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "big")
        blocks += 1
    return blocks


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS)
def test_the_limit_holds_for_them_all(client: str, codec: str) -> None:
    data = golden(client, codec)
    header = header_at(data)
    with pytest.raises(Exception, match="more than 30000 bytes"):
        records_of(data, 0, header, limit_bytes=30_000)
