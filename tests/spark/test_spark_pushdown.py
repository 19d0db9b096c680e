"""Which ranges a batch read leaves out by the filters of its query."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import In

from pyspark_ottla.pushdown import Narrowing, narrowing


def values(column: str, *given: Any) -> In:
    return In((column,), given)


def test_an_offset_among_several_bounds_the_range_also_with_null_among_them() -> None:
    assert narrowing([values("offset", 7, 3)]) == Narrowing(first_offset=3, end_offset=8)
    assert narrowing([values("offset", 7, None, 3)]) == Narrowing(first_offset=3, end_offset=8)
    assert narrowing([values("offset", None)]) == Narrowing(), "Spark finds that no row passes"
