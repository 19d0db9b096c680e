"""`ottla log dump`: it sees what is there, and every kind of damage."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from ottla_broker.log.log import Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.topic_config import TopicConfig
from ottla_cli.main import main
from ottla_core.real.disk import RealDisk
from ottla_core.records.codec import Record, build_batch
from ottla_core.records.compression import Compression
from ottla_core.records.control import Marker, MarkerType, build_marker

NOW_MS = 1_800_000_000_000
FIRST = "00000000000000000000"


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A closed log of three segments, several codecs, a tombstone and a marker."""
    folder = tmp_path / "broker-0" / "orders-0"
    folder.mkdir(parents=True)
    log = Log.open(RealDisk(), str(folder), TopicConfig(index_interval_bytes=1), clean=True, now_ms=NOW_MS)
    for number, codec in enumerate(Compression):
        records = [
            Record(0, NOW_MS + number, b"key", None if number == 2 else b"v%d" % each, [("h", b"\xff")])
            for each in range(3)
        ]
        log.append(build_batch(records, compression=codec), leader_epoch=1, now_ms=NOW_MS)
        if number in (1, 3):
            log.roll(NOW_MS)
    marker = build_marker(
        Marker(MarkerType.COMMIT, 3), producer_id=5, producer_epoch=0, timestamp_ms=NOW_MS + 9
    )
    log.append(marker, leader_epoch=1, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.close()
    return folder


def dump(*arguments: str | Path, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["log", "dump", *map(str, arguments)])
    assert (ended.value.code or 0) == code


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_all_of_it_for_scripts(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(partition, "--deep", "--json")
    found = rows(capsys)
    segments = [row for row in found if row["type"] == "segment"]
    assert [(s["base_offset"], s["next_offset"], s["batches"], s["problems"]) for s in segments] == [
        (0, 6, 2, []),
        (6, 12, 2, []),
        (12, 16, 2, []),
    ]
    assert all(s["index_entries"] for s in segments) and all(s["time_index_entries"] for s in segments)
    batches = [row for row in found if row["type"] == "batch"]
    assert [b["compression"] for b in batches] == ["none", "gzip", "snappy", "lz4", "zstd", "none"]
    assert [b["control"] for b in batches] == [False] * 5 + [True]
    records = [row for row in found if row["type"] == "record"]
    assert [r["offset"] for r in records] == list(range(16))
    assert records[0]["value"] == "v0" and records[6]["value"] is None
    assert records[0]["headers"] == [{"key": "h", "value_base64": "/w=="}]


def test_for_people(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(partition.parent.parent)  # the folder of the whole cluster
    out = capsys.readouterr().out
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["broker-0/orders-0", "0", "5"],
        ["broker-0/orders-0", "6", "11"],
        ["broker-0/orders-0", "12", "15"],
    ]
    assert out.count(" ok") == 3
    dump(partition / f"{FIRST}.log", "--deep", "--from", "4", "--max", "1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"{FIRST}.log:")
    assert lines[1].startswith("batch at byte ") and "offsets 3 to 5, 3 records" in lines[1]
    assert lines[2].split() == ["3", "2027-01-15T08:00:00.001Z", "key=key", "v0", "h=\\xff"]
    dump(f"{partition}/", "--deep", "--from", "15")
    out = capsys.readouterr().out
    assert "commit marker, coordinator epoch 3" in out and "\norders-0 " in out


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def damage_records(folder: Path) -> None:
    flip(folder / f"{FIRST}.log", 70)


def damage_magic(folder: Path) -> None:
    flip(folder / f"{FIRST}.log", 16)


def tear_tail(folder: Path) -> None:
    os.truncate(folder / f"{FIRST}.log", (folder / f"{FIRST}.log").stat().st_size - 5)


def lie_in_index(folder: Path) -> None:
    (folder / f"{FIRST}.index").write_bytes(struct.pack(">ii", 2, 1))


def halve_index(folder: Path) -> None:
    (folder / f"{FIRST}.index").write_bytes(b"\0" * 5)


def lie_in_time_index(folder: Path) -> None:
    (folder / f"{FIRST}.timeindex").write_bytes(struct.pack(">qi", NOW_MS - 5, 2))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_records, "CRC"),
        (damage_magic, "magic 66"),
        (tear_tail, "bytes left"),
        (lie_in_index, "offset 2 is at byte 1"),
        (halve_index, "the index is damaged"),
        (lie_in_time_index, "is newer than"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damage_is_found_and_code_1(
    partition: Path, capsys: pytest.CaptureFixture[str], damage: Any, said: str
) -> None:
    damage(partition)
    dump(partition, "--json", code=1)
    first, *others = rows(capsys)
    assert any(said in problem for problem in first["problems"]), first
    assert all(segment["problems"] == [] for segment in others)
    dump(partition, code=1)
    shown = capsys.readouterr()
    assert said in shown.err and "found in the log files" in shown.err


def test_paths_that_hold_no_log_are_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(tmp_path / "nowhere", code=1)
    dump(tmp_path, code=1)
    (tmp_path / "notes.txt").write_text("hello")
    dump(tmp_path / "notes.txt", code=1)
    sentences = capsys.readouterr().err.splitlines()
    assert len(sentences) == 3 and all(sentence.startswith("ottla: ") for sentence in sentences)
