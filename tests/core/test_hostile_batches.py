"""No bytes in a batch may end the process: the compiled codec alone would abort on some of these."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from budget import examples


def test_hostile_batches_never_end_the_process() -> None:
    rounds = examples(15_000)
    script = Path(__file__).with_name("hostile_batches.py")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), "17", str(rounds)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    fields = done.stdout.split()
    counts = dict(zip(fields[::2], map(int, fields[1::2]), strict=True))
    assert counts["inputs"] > rounds
    # Both ends are exercised: some damage does no harm, most of it is found.
    assert counts["read"] > rounds // 30
    assert counts["corrupt"] > rounds // 3
    assert counts["grown_kb"] < 64 * 1024
