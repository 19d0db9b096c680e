"""The demo, small: every chapter runs for real, checks what it shows, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ottla_cli.demo import activity, letters, postcards
from ottla_cli.failure import Failure


def start(folder: Path, **sizes: int) -> subprocess.Popen[str]:
    """With `folder` for its temporary files."""
    options = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    return subprocess.Popen(
        [sys.executable, "-m", "ottla_cli.demo", *options],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def mentioning(folder: Path) -> list[str]:
    """Command lines of processes that have to do with the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found


@pytest.mark.integration
def test_records_come_back_and_a_killed_broker_costs_none(tmp_path: Path) -> None:
    demo = start(tmp_path, records=20_000, letters=3_000, events=0)
    out, err = demo.communicate(timeout=200)
    assert demo.returncode == 0, out + err
    assert len(set(re.findall(r"[\d,]+ +\S+ m?s +[\d,]+ +[\d.]+ +([0-9a-f]{8,})", out))) == 1, out
    assert out.count("20,000") >= 3
    assert re.search(r"kill -9 broker \d: it led [\d,]+.* and ", out)
    assert re.search(r"reader-3 left: reader-1 has \d,\d,\d · reader-2 has \d,\d,\d", out)
    assert re.search(r"broker \d is back", out)
    for fact in (
        "letters +3,000",
        "acknowledged +3,000",
        "failed +0",
        "read by the group +3,000",
        "missing +0",
    ):
        assert re.search(f"^{fact}$", out, re.M), out
    assert max(map(len, out.splitlines())) <= 80
    assert os.listdir(tmp_path) == [] and mentioning(tmp_path) == []


@pytest.mark.integration
@pytest.mark.java
def test_the_spark_job_counts_each_event_once(tmp_path: Path) -> None:
    demo = start(tmp_path, records=0, letters=0, events=2_000)
    out, err = demo.communicate(timeout=280)
    assert demo.returncode == 0, out + err
    assert "spark-submit" in out
    rows = re.findall(r"^/\w* .* ([\d,]+) *$", out, re.M)
    assert sum(int(row.replace(",", "")) for row in rows) == 2_000, out
    assert os.listdir(tmp_path) == [] and mentioning(tmp_path) == []


@pytest.mark.integration
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    demo = start(tmp_path, records=0, letters=100_000, events=0)
    assert demo.stdout is not None
    while "group 'readers'" not in demo.stdout.readline():
        assert demo.poll() is None
    assert mentioning(tmp_path)
    demo.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130, err
    assert time.monotonic() - began < 45
    assert os.listdir(tmp_path) == [] and mentioning(tmp_path) == []


def test_records_that_are_missing_or_wrong_are_noticed() -> None:
    whole = postcards.Leg("write", 10, 100, 1.0, 7)
    for wrong in (postcards.Leg("read", 9, 90, 1.0, 7), postcards.Leg("read", 10, 100, 1.0, 8)):
        with pytest.raises(Failure, match="they differ from what was written"):
            postcards.check([whole, wrong])


def test_failed_and_lost_writes_are_noticed() -> None:
    tally = letters.Tally(2)
    tally.sent()(None, None)
    tally.got(0)
    tally.got(0)
    assert (tally.read, tally.read_again) == (1, 1)
    with pytest.raises(Failure, match="Of 2 letters 1 were acknowledged and 1 read"):
        letters.check(tally)
    tally.sent()(None, None)
    tally.got(1)
    letters.check(tally)
    tally.sent()(None, ValueError("no room"))
    with pytest.raises(Failure, match="1 write failed, the first with: no room"):
        letters.check(tally)


def test_events_that_were_not_counted_are_noticed() -> None:
    activity.check({("/", "00:00"): 2, ("/help", "00:01"): 1}, 3)
    with pytest.raises(Failure, match="counted 3 events; there were 4"):
        activity.check({("/", "00:00"): 2, ("/help", "00:01"): 1}, 4)


@pytest.mark.parametrize(
    ("banner", "found"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("no such thing", None),
    ],
)
def test_the_version_of_java_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str, found: int | None
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert activity.java_version() == found
    assert (activity.why_not() is None) == ((found or 0) >= 17)


def test_without_java_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Java 17 or newer" in (activity.why_not() or "")
