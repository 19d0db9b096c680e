"""What Spark's processes used, also of those that ended meanwhile; the goals of the comparison."""

from __future__ import annotations

from ottla_bench.rows import figures
from ottla_bench.spark_growth import growth_problems
from ottla_bench.spark_measures import MEASURES
from ottla_bench.spark_rows import SPARK_ROWS
from ottla_bench.spark_session import CpuUse


def test_processes_that_began_or_ended_count_with_what_they_used_meanwhile() -> None:
    before = CpuUse({1: 10.0, 2: 3.0, 3: 1.0}, 5.0)
    after = CpuUse({1: 12.0, 2: 3.5, 4: 0.25}, 6.75)  # 3 used 0.75 more and ended; 4 is new
    assert after.since(before) == 2.0 + 0.5 + 0.25 + 0.75
    assert CpuUse({1: 10.0}, 5.0).since(before) == 0.0  # others reaped it: unknown, not negative


def test_goals_are_judged_by_the_connector() -> None:
    (figure,) = figures([SPARK_ROWS[0]], [{"read_100": 300.0}], [{"read_100": 630.0}])
    assert figure.reached is True
    assert {name for name in MEASURES if name != "trickle"} <= {row.key for row in SPARK_ROWS}


def test_growth_that_costs_speed_or_memory_is_a_failure() -> None:
    same = {"read_100": [100.0, 91.0], "stream_100": [50.0, 60.0]}
    held = {"read_100": [200.0, 210.0], "stream_100": [200.0, 190.0]}
    assert growth_problems(same, held) == []
    assert growth_problems({**same, "stream_100": [50.0, 44.0]}, held) == [
        "More than a tenth slower with more rows: stream."
    ]
    assert growth_problems(same, {**held, "read_100": [200.0, 260.0]}) == [
        "More than a quarter more memory of Python with more rows: batch read."
    ]
