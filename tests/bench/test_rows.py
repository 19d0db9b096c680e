"""How the comparison judges: medians, ratios, floors and ceilings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla_bench.report import markdown, write_between
from ottla_bench.rows import NOTES, ROWS, TRIO_NOTES, TRIO_ROWS, Row, figures, number, spread


def test_a_ratio_is_of_medians_not_of_single_runs() -> None:
    (figure,) = figures(
        [Row("a", "a", "ms", 0.5)],
        kafka=[{"a": 10.0}, {"a": 1000.0}, {"a": 12.0}],
        ottla=[{"a": 6.0}, {"a": 1.0}, {"a": 5.0}],
    )
    assert figure.kafka == (12.0, 10.0, 1000.0)
    assert figure.ottla == (5.0, 1.0, 6.0)
    assert figure.ratio == pytest.approx(5 / 12)
    assert figure.reached is True


@pytest.mark.parametrize(
    ("more", "ratio", "reached"),
    [(True, 1.3, True), (True, 1.1, False), (False, 1.1, True), (False, 1.3, False)],
)
def test_a_bound_is_a_floor_where_more_is_better(more: bool, ratio: float, reached: bool) -> None:
    assert Row("a", "a", "MB/s", 1.2, more=more).reached(ratio) is reached


def test_a_row_without_a_bound_is_neither_reached_nor_missed() -> None:
    assert Row("a", "a", "MB/s").reached(0.0) is None
    assert Row("a", "a", "MB/s").goal == ""


def test_rows_that_nobody_measured_are_left_out_and_one_sided_ones_have_no_ratio() -> None:
    found = figures([Row("a", "a", "MB"), Row("b", "b", "MB")], kafka=[{}], ottla=[{"b": 3.0}])
    assert [figure.row.key for figure in found] == ["b"]
    assert found[0].kafka is None
    assert found[0].ratio is None


def test_a_ceiling_is_for_our_side_alone() -> None:
    row = Row("gap", "gap", "s", ceiling=1.0)
    (figure,) = figures([row], kafka=[], ottla=[{"gap": 0.3}, {"gap": 5.0}, {"gap": 0.4}])
    assert figure.reached is True
    assert row.goal == "< 1 s"


def test_a_ceiling_may_hold_for_the_worst_run() -> None:
    row = Row("lost", "lost", "records", ceiling=1.0, always=True)
    (figure,) = figures([row], kafka=[{"lost": 7.0}], ottla=[{"lost": 0.0}, {"lost": 1.0}, {"lost": 0.0}])
    assert figure.reached is False


@pytest.mark.parametrize("rows", [(*ROWS, *NOTES), (*TRIO_ROWS, *TRIO_NOTES)])
def test_keys_are_told_once(rows: tuple[Row, ...]) -> None:
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys))


def test_numbers_keep_three_digits() -> None:
    assert [number(value) for value in (0.123, 1.234, 12.34, 1234.5)] == ["0.12", "1.23", "12.3", "1,234"]
    assert spread([3.0]) == (3.0, 3.0, 3.0)


def test_a_page_keeps_what_is_around_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- /table -->\nafter\n")
    write_between(page, "table", markdown(("", "x"), [("  a", "1")]))
    assert (
        page.read_text()
        == "before\n<!-- table -->\n|  | x |\n| --- | ---: |\n| a | 1 |\n<!-- /table -->\nafter\n"
    )
    with pytest.raises(ValueError, match="has no"):
        write_between(page, "other", "")
