"""The side-by-side harness on our own side, with next to no data."""

from __future__ import annotations

import pytest

from ottla_bench.contenders import OTTLA
from ottla_bench.measures import MEASURES, Sizes, one_life
from ottla_bench.rows import NOTES, ROWS

_TINY = Sizes(2_000, 2_000, 20, 20, 0.2, 0.02, 1, 100, 100, 5, 0.1)


@pytest.mark.integration
def test_every_row_is_measured() -> None:
    sample = one_life(OTTLA, MEASURES, _TINY, lambda told: None)
    assert set(sample) == {row.key for row in (*ROWS, *NOTES)}
    # CPU is counted in ticks of 10 ms, which so little data may not take.
    assert all(value > 0 for key, value in sample.items() if "cpu" not in key and key != "etcd_produce")
    assert sample["p50"] <= sample["p99"]
