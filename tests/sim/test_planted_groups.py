"""The checks of consumer groups can fail: each planted bug is found by the invariant that is meant for it."""

from __future__ import annotations

from functools import cache

import pytest

from sim.campaign import run_seed
from sim.planted_groups import PLANTED
from sim.shape import Shape
from sim.world import Violation

SEEDS_MAX = 50
FAULTS_S = 6.0


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_bug_in_groups_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, first, shape, breaks = PLANTED[name]
    with monkeypatch.context() as patch:
        plant(patch)
        for seed in dict.fromkeys((first, *range(1, SEEDS_MAX + 1))):
            if (verdict := run_seed(seed, FAULTS_S, None, shape)).failure is not None:
                break
    assert verdict.failure is not None, f"{SEEDS_MAX} seeds are blind to it"
    assert str(verdict.failure).split()[0] in breaks, verdict.failure
    clean = _clean(seed, shape)
    assert clean is None, f"seed {seed} fails without the plant: {clean}"


@cache
def _clean(seed: int, shape: Shape) -> Violation | None:
    return run_seed(seed, FAULTS_S, None, shape).failure
