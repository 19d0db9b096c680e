"""The flood harness on our own side, for a few seconds: every figure is measured, and the floods are really there."""

from __future__ import annotations

import pytest

from ottla_bench.contenders import OTTLA
from ottla_bench.flood_requests import FLOODS, requests
from ottla_bench.floods import FLOOD_NOTES, FLOOD_ROWS, LEVELS, FloodSizes, one_flood_life

_TINY = FloodSizes(partitions=30, seconds=3.0, warm_seconds=1.0)


def test_every_flood_has_requests_of_its_own() -> None:
    made = [requests(kind, "t", range(900)) for kind in FLOODS]
    assert [len(frames) for frames in made] == [900, 1, 1, 1]
    assert all(int.from_bytes(frame[:4], "big") == len(frame) - 4 for frames in made for frame in frames)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_every_row_is_measured() -> None:
    (sample,) = one_flood_life(OTTLA, ("none", "four"), _TINY, lambda told: None)
    levels = ("none", "four")
    wanted = {row.key for row in (*FLOOD_ROWS, *FLOOD_NOTES) if row.key.rpartition("_")[2] in levels}
    assert set(sample) | {"cut_none"} == wanted | {"cut_none"}
    assert sample["failed_none"] == sample["failed_four"] == 0
    assert sample["joins_none"] > 0
    assert all(sample[f"rate_{flood}_four"] > 0 for flood in FLOODS)
    assert LEVELS["four"] == len(FLOODS)
