"""Kafka's own DumpLogSegments reads what compaction and transactions leave behind: no broker, only files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla_bench.kafka_jars import KAFKA_DUMP_LOG, run_tool
from ottla_broker.log.cleaner import Cleaning
from ottla_broker.log.log import Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.topic_config import TopicConfig
from ottla_core.real.disk import RealDisk
from sim.batches import CODECS, Rec, make_batch, make_marker

pytestmark = [pytest.mark.integration, pytest.mark.java]

NOW = 1_700_000_000_000
CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=1500,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
)


def fill(log: Log) -> None:
    """All codecs, an idempotent producer, tombstones, a committed, two aborted and an open transaction."""
    for number in range(20):
        recs = [Rec(b"a%d" % (number % 3), b"%d" % number, NOW), Rec(b"b%d" % (number % 7), None, NOW)]
        codec = sorted(CODECS)[number % len(CODECS)]
        batch = make_batch(recs, codec=codec, producer_id=9, epoch=2, sequence=2 * number)
        log.append(batch, leader_epoch=1, now_ms=NOW)
    for sequence, commit in enumerate((True, False, False)):
        batch = make_batch(
            [Rec(b"t", b"%d" % sequence, NOW)], producer_id=7, epoch=0, sequence=sequence, transactional=True
        )
        log.append(batch, leader_epoch=1, now_ms=NOW, origin=AppendOrigin.TRANSACTION)
        end = make_marker(commit=commit, producer_id=7, timestamp=NOW)
        log.append(end, leader_epoch=1, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    log.roll(NOW)
    still_open = make_batch([Rec(b"o", b"", NOW)], producer_id=8, epoch=0, sequence=0, transactional=True)
    log.append(still_open, leader_epoch=1, now_ms=NOW, origin=AppendOrigin.TRANSACTION)


@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_every_file_is_read_without_complaint(tmp_path: Path, compacted: bool) -> None:
    log = Log.open(RealDisk(), str(tmp_path / "t-0"), CONFIG, clean=True, now_ms=NOW)
    fill(log)
    if compacted:
        cleaning = Cleaning.begin(log, now_ms=NOW, first_dirty_offset=0, stable_offset=log.end_offset - 1)
        assert cleaning is not None
        while cleaning.step():
            pass
        for work in cleaning.finish(log, NOW):
            work()
        assert cleaning.end_offset == log.active.base_offset
    log.close()
    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = [path for path in sorted((tmp_path / "t-0").iterdir()) if path.suffix in kinds]
    assert {path.suffix for path in files} == set(kinds)
    done = run_tool(KAFKA_DUMP_LOG, "--deep-iteration", "--files", ",".join(map(str, files)))
    assert done.returncode == 0, done.stderr
    said = done.stdout
    for complaint in (
        "isvalid: false",
        "mismatch",
        "exception",
        "error",
        "out of order",
        "corrupt",
        "invalid",
    ):
        assert complaint not in said.lower() + done.stderr.lower()
    assert "producerId: 7 firstOffset: 42 lastOffset: 43" in said
    assert "currentTxnFirstOffset: OptionalLong[46]" in said
    assert ("deleteHorizonMs: OptionalLong[1700086400000]" in said) == compacted
    data_records = said.count("| offset:")
    assert data_records < 20 if compacted else data_records >= 40
