"""Compiled modules and their Python sources say the same about any bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from core import pure_reader
from ottla_core.records.batch import HEADER_BYTES
from ottla_core.records.codec import Record, build_batch
from ottla_core.records.compression import Compression

blobs = st.none() | st.binary(max_size=200) | st.binary(min_size=1, max_size=1).map(lambda one: one * 9_000)
headers = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), blobs), max_size=3)
#: Few of any kind, or thousands of small ones: more than a turn of the check.
rows = st.lists(
    st.tuples(st.integers(0, 2**45), blobs, blobs, headers), min_size=1, max_size=20
) | st.integers(1_990, 4_100).map(
    lambda count: [(n * 7 % 50, None if n % 3 else b"k", b"v" * (n % 5), []) for n in range(count)]
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """A batch as producers make it, perhaps changed and cut off, and how many records it should have."""
    made = [Record(n, *row) for n, row in enumerate(draw(rows))]
    data = build_batch(made, compression=draw(st.sampled_from(Compression)))
    count = len(made)
    for _ in range(draw(st.integers(0, 3))):
        # Mostly among the first records, whose numbers matter most.
        at = draw(
            st.integers(0, len(data) - 1) | st.integers(HEADER_BYTES, min(HEADER_BYTES + 40, len(data) - 1))
        )
        data[at] = draw(st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
        count = max(0, count + draw(st.integers(-1, 1)))
    return bytes(data), count


@pytest.fixture(scope="module")
def pure() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs the sources."""
    with subprocess.Popen(
        [sys.executable, "-m", "core.pure_reader"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent, env={**os.environ, "OTTLA_PURE": "1"},
    ) as process:  # fmt: skip
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


@given(batches())
@settings(max_examples=examples(200), deadline=None)
def test_both_say_the_same(pure: subprocess.Popen[bytes], batch: tuple[bytes, int]) -> None:
    data, count = batch
    assert pure_reader.ask(pure.stdin, pure.stdout, data, count) == pure_reader.outcomes(data, count)
