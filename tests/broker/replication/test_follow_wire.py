"""The Follow frames: what goes in comes out, and no bytes from a peer can do more than end its stream."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.replication import follow_wire as wire
from ottla_broker.replication.follow_wire import (
    Kind,
    PositionEntry,
    PositionKind,
    Section,
    SectionKind,
    WireError,
)

ME, YOU = UUID(int=1).bytes, UUID(int=2).bytes
KEY = wire.partition_key(UUID(int=77), 4)

OFFSETS = st.integers(-1, (1 << 63) - 1)
EPOCHS = st.integers(-1, (1 << 31) - 1)
KEYS = st.binary(min_size=wire.KEY_BYTES, max_size=wire.KEY_BYTES)
ENTRIES = st.builds(
    PositionEntry, KEYS, st.sampled_from(PositionKind).map(int), EPOCHS, EPOCHS, OFFSETS, OFFSETS
)
SECTIONS = st.builds(
    Section,
    KEYS,
    st.sampled_from(SectionKind).map(int),
    EPOCHS,
    EPOCHS,
    OFFSETS,
    OFFSETS,
    OFFSETS,
    st.binary(max_size=99),
)


def encode(sections: list[Section]) -> bytes:
    parts: list[bytes] = []
    for section in sections:
        parts += [wire.encode_section_header(section, len(section.records)), bytes(section.records)]
    return wire.encode_batches(ME, YOU, len(sections), parts)


@given(st.lists(ENTRIES, max_size=5))
def test_positions_survive(entries: list[PositionEntry]) -> None:
    frame = wire.encode_positions(ME, YOU, entries)
    header = wire.decode_header(frame)
    assert header == (Kind.POSITIONS, len(entries), ME, YOU)
    assert wire.decode_positions(frame, header.count) == entries


@given(st.lists(SECTIONS, max_size=4))
def test_sections_survive(sections: list[Section]) -> None:
    frame = encode(sections)
    header = wire.decode_header(frame)
    assert header == (Kind.BATCHES, len(sections), ME, YOU)
    assert wire.decode_batches(frame, header.count) == sections


def test_records_are_views_of_the_frame() -> None:
    frame = encode([Section(KEY, SectionKind.BATCHES, 1, -1, 5, 4, 0, b"abc")])
    (section,) = wire.decode_batches(frame, 1)
    assert isinstance(section.records, memoryview)
    assert section.records.obj is frame


def test_a_greeting_survives() -> None:
    frame = wire.encode_hello(ME, YOU, 3, 1)
    assert wire.decode_header(frame).kind == Kind.HELLO
    assert wire.decode_hello(frame) == (3, 1)


def test_a_key_names_topic_and_partition() -> None:
    assert wire.partition_of(KEY) == (UUID(int=77), 4)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_an_error(junk: bytes) -> None:
    try:
        header = wire.decode_header(junk)
        wire.decode_batches(junk, header.count)
        wire.decode_positions(junk, header.count)
        wire.decode_hello(junk)
    except WireError as error:
        assert str(error)


@given(st.lists(SECTIONS, min_size=1, max_size=3), st.data())
def test_a_cut_or_stretched_frame_is_refused(sections: list[Section], data: st.DataObject) -> None:
    frame = encode(sections)
    cut = frame[: data.draw(st.integers(wire.HEADER_BYTES, len(frame) - 1))]
    for changed in (cut, frame + b"\0"):
        with pytest.raises(WireError):
            wire.decode_batches(changed, len(sections))


def test_a_newer_version_is_refused_with_a_sentence() -> None:
    frame = bytearray(wire.encode_hello(ME, YOU, 3, 1))
    frame[0] = 9
    with pytest.raises(WireError, match="version 9"):
        wire.decode_header(bytes(frame))


def test_a_request_for_the_log_start_is_in_a_byte_that_was_padding() -> None:
    plain = Section(KEY, SectionKind.BATCHES, 1, -1, 5, 4, 0, b"")
    asking = plain._replace(asks_start=True)
    with_flag, without = encode([asking]), encode([plain])
    (at,) = [i for i, (a, b) in enumerate(zip(with_flag, without, strict=True)) if a != b]
    assert at == wire.HEADER_BYTES + 21 and with_flag[at] == 1 and without[at] == 0
    assert wire.decode_batches(with_flag, 1) == [asking]
