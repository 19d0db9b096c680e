"""Kafka's DumpLogSegments reads the broker's own files: segments, both indexes and producer snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from interop.clients import CODECS, TIMEOUT_S
from interop.conftest import create_topic
from interop.target import Target, running_target
from ottla_bench.kafka_jars import KAFKA_DUMP_LOG, run_tool

pytestmark = [pytest.mark.integration, pytest.mark.java]

#: The tool's ways of saying that a file is not what it should be.
COMPLAINTS = (
    "mismatch",
    "exception",
    "error",
    "out of order",
    "isvalid: false",
    "corrupt",
    "wrong",
    "invalid",
)
RECORDS_PER_CODEC = 700
VALUE_BYTES = 4_000
#: The smallest segment that Kafka 4 allows.
SEGMENT_BYTES = "1048576"
INDEXES = (".index", ".timeindex")
BATCH = r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* compresscodec: (\w+) "
RECORD = r"^\| offset: (\d+) .* valueSize: (\d+) .* headerKeys: \[codec\]"


def fill(target: Target, topic: str) -> None:
    """Several segments: batches of all compressions, keys and headers, from idempotent producers and others."""
    # Plain batches last: they fill the segments, and each roll snapshots the producers that came before.
    for codec in ("zstd", "lz4", "snappy", "gzip", "none"):
        producer = Producer(
            {
                "bootstrap.servers": target.bootstrap,
                "compression.type": codec,
                "enable.idempotence": codec in ("none", "zstd"),
                "batch.size": 20_000,
                "linger.ms": 50,
            }
        )
        for n in range(RECORDS_PER_CODEC):
            value = (b"%d " % n * VALUE_BYTES)[:VALUE_BYTES]
            producer.produce(topic, value, b"%d" % n, partition=0, headers=[("codec", codec.encode())])
        assert producer.flush(TIMEOUT_S) == 0


def test_the_files_of_a_running_broker(
    target: Target, new_name: Callable[[], str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(new_name(), segment_bytes=SEGMENT_BYTES)
    fill(target, topic)
    *closed, active = target.segments(topic)
    assert len(closed) >= 2
    indexes = [segment.with_suffix(suffix) for segment in closed for suffix in INDEXES]
    # The active segment's indexes are the broker's own business while it runs.
    check_dump(target, topic, [*closed, active], indexes)
    checked = dump(*indexes, options=("--index-sanity-check",))
    for index in indexes:
        assert f"{index} passed sanity check." in checked, (
            "what Kafka asks at start-up to decide on rebuilding"
        )


def test_the_files_of_a_stopped_broker(tmp_path: Path) -> None:
    """After a clean stop everything is on disk, also for the segment that was being written."""
    with running_target(tmp_path) as own:
        admin = AdminClient({"bootstrap.servers": own.bootstrap})
        topic = create_topic(admin, "stopped", segment_bytes=SEGMENT_BYTES)
        fill(own, topic)
    segments = own.segments(topic)
    indexes = [segment.with_suffix(suffix) for segment in segments for suffix in INDEXES]
    check_dump(own, topic, segments, indexes)


def check_dump(target: Target, topic: str, segments: list[Path], indexes: list[Path]) -> None:
    snapshots = sorted(target.partition_folder(topic).glob("*.snapshot"))
    assert snapshots, "every roll leaves the producers' state behind"
    output = dump(*segments, *indexes, *snapshots)

    headers = target.batches(topic)
    total = len(CODECS) * RECORDS_PER_CODEC
    assert sum(header.count for header in headers) == total
    batches = re.findall(BATCH, output, re.M)
    assert [int(batch[0]) for batch in batches] == [header.base_offset for header in headers]
    assert {batch[3] for batch in batches} == set(CODECS)
    records = re.findall(RECORD, output, re.M)
    assert [int(record[0]) for record in records] == list(range(total))
    assert {int(record[1]) for record in records} == {VALUE_BYTES}
    assert len(re.findall(r"^offset: \d+ position: \d+", output, re.M)) > len(indexes), (
        "the offset index has entries"
    )
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", output, re.M)) > len(indexes), (
        "so has the time index"
    )
    producers = {header.producer_id for header in headers if header.has_producer}
    assert set(map(int, re.findall(r"^producerId: (\d+) ", output, re.M))) == producers
    assert len(producers) == 2


def dump(*files: Path, options: tuple[str, ...] = ("--deep-iteration",)) -> str:
    done = run_tool(KAFKA_DUMP_LOG, *options, "--files", ",".join(map(str, files)), timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    said = done.stdout.lower()
    for complaint in COMPLAINTS:
        at = said.find(complaint)
        assert at == -1, done.stdout[max(0, at - 200) : at + 300]
    assert _without_false_start(done.stderr) == "", done.stderr
    return done.stdout


def _without_false_start(text: str) -> str:
    """The tool expects every file to begin at offset 0, and says so of each that does not; of Kafka's own too."""
    gaps = re.compile(r"Non-consecutive offsets in \S*/0*(\d+)\.log\n  -1 is followed by \1\n")
    return gaps.sub("", text)
