"""Every stock client writes, every stock client reads, in every compression, through one partition."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from interop.clients import CODECS, READERS, WRITERS, Sample, binary_samples, text_samples
from interop.conftest import create_topic
from interop.target import Target

pytestmark = [pytest.mark.integration, pytest.mark.java]

#: Readers of the same compression share what was written.
_written: dict[str, tuple[str, list[Sample]]] = {}


def written_by_all(target: Target, admin: AdminClient, codec: str) -> tuple[str, list[Sample]]:
    """A topic to which each client appended its samples, and all of them in order."""
    if codec not in _written:
        topic = create_topic(admin, f"every-pair-{codec}")
        samples: list[Sample] = []
        for name, write in WRITERS.items():
            mine = text_samples(name) if name != "kcat" else _in_runs(text_samples(name))
            before = len(target.batches(topic))
            write(target, topic, mine, codec)
            appended = target.batches(topic)[before:]
            # Clients fall back to sending plain batches without a word, so the broker's own files are asked.
            assert {header.compression for header in appended} == {CODECS[codec]}, name
            assert sum(header.count for header in appended) == len(mine), name
            samples += mine
        _written[codec] = topic, samples
    return _written[codec]


def _in_runs(samples: list[Sample]) -> list[Sample]:
    """The same records under one set of headers: kcat has one per call, and many calls take long."""
    return [sample._replace(headers=(("by", b"kcat"),)) for sample in samples]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", READERS)
def test_reads_what_every_client_wrote(target: Target, admin: AdminClient, reader: str, codec: str) -> None:
    topic, expected = written_by_all(target, admin, codec)
    assert READERS[reader](target, topic, len(expected)) == expected


@pytest.mark.parametrize("name", ["confluent", "aiokafka", "kafka-python"])
def test_nulls_empties_and_every_byte_survive(target: Target, topic: str, name: str) -> None:
    expected = binary_samples()
    WRITERS[name](target, topic, expected, "zstd")
    for reader in ("confluent", "aiokafka", "kafka-python"):
        assert READERS[reader](target, topic, len(expected)) == expected, reader


@pytest.mark.parametrize("reader", READERS)
def test_reading_starts_inside_a_batch(target: Target, admin: AdminClient, reader: str) -> None:
    """A consumer that seeks to the middle of a batch gets the batch and skips what it did not ask for."""
    topic, expected = written_by_all(target, admin, "lz4")
    first, *_ = target.batches(topic)
    start = first.base_offset + first.last_offset_delta // 2
    assert first.count > 10, "the batch must have an inside"
    assert READERS[reader](target, topic, 20, start) == expected[start : start + 20]  # type: ignore[call-arg]
