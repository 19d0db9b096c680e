"""The three-broker harness on our own side, with next to no data: every row, and a broker killed and paused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla_bench import comparison
from ottla_bench.comparison import Comparison
from ottla_bench.contenders import KAFKA, OTTLA
from ottla_bench.rows import TRIO_NOTES, TRIO_ROWS, Row
from ottla_bench.trio_measures import TRIO_MEASURES, TrioSizes, one_trio_life

_TINY = TrioSizes(2_000, 100, 10, 20, 10, 20, 5, 1, 0.1)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_every_row_is_measured_and_nothing_is_lost() -> None:
    (sample,) = one_trio_life(OTTLA, TRIO_MEASURES, _TINY, lambda told: None)
    assert set(sample) == {row.key for row in (*TRIO_ROWS, *TRIO_NOTES)}
    assert sample["lost"] == sample["failed"] == 0
    assert all(sample[key] > 0 for key in ("rf3", "thousand", "p50", "kill_leader", "pause_leader_quick"))


def _twice(name: str, _wanted: object, _quick: object, say: comparison.Say) -> list[dict[str, float]]:
    say(f"{name} is measured")
    return [{"gap": 2.0}] if name == KAFKA else [{"gap": 0.5}, {"gap": 0.7}]


def test_a_turn_may_give_several_samples_and_the_file_keeps_other_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"other": 1}))
    rows = [Row("gap", "the gap", "s", ceiling=1.0, binding=True)]
    monkeypatch.setattr("sys.argv", ["bench", "--runs", "2", "--json", str(file)])
    assert comparison.compare(Comparison("gaps", "about gaps", ["gap"], rows, [], _twice)) == 0
    kept = json.loads(file.read_text())
    assert kept["other"] == 1
    assert [sample["gap"] for sample in kept["gaps"]["samples"][OTTLA]] == [0.5, 0.7, 0.5, 0.7]
    out = capsys.readouterr().out
    assert "0.60 (0.50..0.70)" in out
    assert "All goals that bind are reached." in out


def test_only_one_side_can_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--runs", "1", "--side", "ottla"])
    assert comparison.compare(Comparison("gaps", "about gaps", ["gap"], [], [], _twice)) == 0
    assert "Kafka is measured" not in capsys.readouterr().out
