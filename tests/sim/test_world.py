"""Whole clusters under faults, a couple of dozen of them: the same as `make sim`, in short."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.__main__ import told
from sim.campaign import run_seed

#: Short worlds, so that all of them are a matter of seconds; `make sim` runs long ones.
FAULTS_S = 5.0
SEEDS_PER_TEST = 4
TESTS = 6


@pytest.mark.parametrize("group", range(TESTS))
def test_no_invariant_is_broken(group: int) -> None:
    acknowledged = 0
    for seed in range(1 + group * SEEDS_PER_TEST, 1 + (group + 1) * SEEDS_PER_TEST):
        verdict = run_seed(seed, FAULTS_S)
        assert verdict.failure is None, told(verdict)
        acknowledged += verdict.acknowledged
    assert acknowledged > 100, "hardly anything was written, so hardly anything was tested"


def test_a_world_leaves_no_loop_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that end after the world's end find its loop. A real one would never be closed."""
    made: list[asyncio.AbstractEventLoop] = []

    def make() -> asyncio.AbstractEventLoop:
        made.append(shipped())
        return made[-1]

    shipped = asyncio.get_event_loop_policy().new_event_loop
    monkeypatch.setattr(asyncio.get_event_loop_policy(), "new_event_loop", make)
    for seed in range(1, 5):
        asyncio.set_event_loop(None)
        monkeypatch.setattr(asyncio.get_event_loop_policy()._local, "_set_called", False)  # type: ignore[attr-defined]
        assert run_seed(seed, FAULTS_S).failure is None
    for loop in made:
        loop.close()
    assert made == []


def test_a_seed_is_a_world() -> None:
    """The same trace in every process: under other hash seeds, and at other addresses."""
    digests = [_digests(hash_seed) for hash_seed in ("1", "2", "77")]
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0].split("\n"))) == 3


def _digests(hash_seed: str) -> str:
    tests = Path(__file__).parent.parent
    arguments = ["--seeds", "2", "--first", "5", "--faults-s", "4", "--digest"]
    ran = subprocess.run(
        [sys.executable, "-m", "sim", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(tests)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return ran.stdout
