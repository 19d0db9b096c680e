from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from ottla_e2e.bounded import run_bounded
from ottla_e2e.say import Fault


def test_what_takes_too_long_ends_with_all_it_started(tmp_path: Path) -> None:
    """As a compiler below a build script: ending the script alone leaves it running."""
    script = f"sleep 300 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(Fault, match=r"^building it took longer than 0\.5 s and was ended"):
        run_bounded(["sh", "-c", script], 0.5, "building it")
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _runs(pid):
        assert time.monotonic() < deadline, "still running"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_failure_is_one() -> None:
    run_bounded(["true"], 10, "it")
    with pytest.raises(subprocess.CalledProcessError):
        run_bounded(["false"], 10, "it")
