"""The simulation can see: each planted bug breaks an invariant within a few dozen seeds."""

from __future__ import annotations

from functools import cache

import pytest

from sim.campaign import run_seed
from sim.planted import PLANTED
from sim.planted_txn import PLANTS
from sim.shape import Shape
from sim.world import Violation

SEEDS_MAX = 50
FAULTS_S = 6.0


@pytest.mark.parametrize("name", sorted(PLANTS))
def test_planted_bug_in_transactions_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, first, nemesis, shape = PLANTS[name]
    with monkeypatch.context() as patch:
        plant(patch)
        for seed in dict.fromkeys((first, *range(1, SEEDS_MAX + 1))):
            if (verdict := run_seed(seed, FAULTS_S, nemesis, shape)).failure is not None:
                break
    assert verdict.failure is not None, f"{SEEDS_MAX} seeds are blind to it"
    assert str(verdict.failure).startswith("I")
    clean = _clean(seed, nemesis, shape)
    assert clean is None, f"seed {seed} fails without the plant: {clean}"


@cache
def _clean(seed: int, nemesis: str | None, shape: Shape) -> Violation | None:
    return run_seed(seed, FAULTS_S, nemesis, shape).failure


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, first, nemesis, shape = PLANTED[name]
    with monkeypatch.context() as patch:
        plant(patch)
        # The seed that is known to find it goes first; a change of the world may need another.
        for seed in dict.fromkeys((first, *range(1, SEEDS_MAX + 1))):
            if (verdict := run_seed(seed, FAULTS_S, nemesis, shape)).failure is not None:
                break
    assert verdict.failure is not None, f"{SEEDS_MAX} seeds are blind to it"
    assert str(verdict.failure).startswith("I")
    clean = run_seed(seed, FAULTS_S, nemesis, shape)
    assert clean.failure is None, f"seed {seed} fails without the plant: {clean.failure}"
