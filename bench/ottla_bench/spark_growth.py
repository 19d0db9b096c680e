"""Does Ottla's data source stay as fast, and its memory bounded, when there are ten times as many rows? [A]"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ottla_bench.report import markdown, show, write_between
from ottla_bench.rows import number
from ottla_bench.spark_measures import OTTLA, QUICK, Measures, Sizes
from ottla_bench.spark_session import PeakMemory, spark_with_both
from ottla_cli.local_cluster import LocalCluster

_HEAD = ("rows of 100 B", "k/s", "largest Python worker, MB", "Python driver, MB", "JVM, MB")
#: A rate within this of the first one's is as good as the same.
_SHARE = 0.9
#: Memory of Python processes within this of the first one's is bounded: allocators keep what they had.
_MEMORY_SHARE = 1.25
_KINDS = {"read_100": "batch read", "exact_100": "batch write, exactly once", "stream_100": "stream"}


def growth(console: Console, sizes: Sequence[int], page: Path | None) -> int:
    """Each size in a JVM of its own: a heap that has grown stays so."""
    rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    memory: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    rows: list[tuple[str, ...]] = []
    for size in sizes:
        with (
            tempfile.TemporaryDirectory(prefix="ottla-bench-spark-") as folder,
            LocalCluster() as cluster,
            spark_with_both(Path(folder), with_connector=False) as spark,
            Measures(spark, cluster, QUICK, Path(folder), prefix="warm-") as warm,
            Measures(
                spark, cluster, Sizes(rows_100=size, rows_1k=1, written_100=size), Path(folder)
            ) as whole,
        ):
            for measures in (warm, whole):
                measures.fill(set())
            for kind, title in _KINDS.items():
                for _ in range(2):
                    warm.take(kind, OTTLA)
                with PeakMemory(spark) as peak:
                    rate = whole.take(kind, OTTLA)[kind]
                rates[kind].append(rate)
                memory[kind].append(max(peak.worker_mb, peak.driver_mb))
                held = (peak.worker_mb, peak.driver_mb, peak.jvm_mb)
                rows.append((f"{title}, {size:,}", number(rate), *map(number, held)))
                console.print(f"    [dim]{', '.join(rows[-1])}[/]")
    rows.sort(key=lambda row: row[0].partition(",")[0])
    show(console, time.strftime("%Y-%m-%d"), _HEAD, rows)
    problems = growth_problems(rates, memory)
    sentence = (
        " ".join(problems) or "No size is more than a tenth slower than the first, nor holds more memory."
    )
    console.print(sentence)
    if page is not None:
        write_between(page, "spark-growth", "\n".join([markdown(_HEAD, rows), sentence, ""]))
    return 1 if problems else 0


def growth_problems(rates: Mapping[str, Sequence[float]], memory: Mapping[str, Sequence[float]]) -> list[str]:
    """A sentence for each promise that does not hold; rates and memory are by kind, the smallest size first."""
    slower = [kind for kind, found in rates.items() if min(found) < _SHARE * found[0]]
    larger = [kind for kind, found in memory.items() if max(found) > _MEMORY_SHARE * found[0]]
    named = (
        ("More than a tenth slower with more rows", slower),
        ("More than a quarter more memory of Python with more rows", larger),
    )
    return [f"{what}: {', '.join(_KINDS[kind] for kind in kinds)}." for what, kinds in named if kinds]
