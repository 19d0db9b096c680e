"""`make bench-spark`: the data source `ottla` beside Spark's Kafka connector, in one JVM, on the same topics. [A]

    python -m ottla_bench.spark_side_by_side [--runs 3] [--only read_100,trickle] [--quick] [--json FILE] [--write PAGE]
    python -m ottla_bench.spark_side_by_side --growth 2000000,20000000

How to read the result: docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pyspark
from rich.console import Console

from ottla_bench.kafka_jars import KafkaJarsUnavailable
from ottla_bench.load_client import LoadFailed
from ottla_bench.report import (
    coloured_ratio,
    environment,
    markdown,
    one_line,
    ratio,
    show,
    told,
    write_between,
)
from ottla_bench.rows import figures
from ottla_bench.spark_growth import growth
from ottla_bench.spark_measures import CONNECTOR, MEASURES, OTTLA, QUICK, Measures, Sizes
from ottla_bench.spark_rows import SPARK_ROWS
from ottla_bench.spark_session import CONNECTOR_VERSION, spark_with_both
from ottla_cli.local_cluster import LocalCluster

Samples = dict[str, list[dict[str, float]]]
_HEAD = ("", "unit", CONNECTOR, OTTLA, "ratio", "goal")


def main() -> int:
    # On a signal, stop the started processes as well.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = _options()
    console = Console()
    try:
        if options.growth:
            return growth(console, [int(rows) for rows in options.growth.split(",")], options.write)
        samples = measured(console, options)
    except (KafkaJarsUnavailable, LoadFailed) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    _show(console, samples, options)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Spark's Kafka connector and Ottla's data source, side by side"
    )
    parser.add_argument("--runs", type=int, help="turns of each side after one that is not counted (3)")
    parser.add_argument("--only", default="", help=f"measures, by comma: {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="smoke test: little data, one turn")
    parser.add_argument(
        "--growth", metavar="ROWS,ROWS", help="instead: rates and memory of Ottla by number of rows"
    )
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--write", type=Path, help="put the table into this page, where its marks are")
    found = parser.parse_args()
    found.only = [name for name in found.only.split(",") if name] or list(MEASURES)
    if unknown := set(found.only) - set(MEASURES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    return found


def measured(console: Console, options: argparse.Namespace) -> Samples:
    """Turn by turn, the sides in turn first. The first turn warms up JVM and page cache."""
    sizes = QUICK if options.quick else Sizes()
    runs = options.runs or (1 if options.quick else 3)
    samples: Samples = {CONNECTOR: [], OTTLA: []}
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-spark-") as folder,
        LocalCluster() as cluster,
        spark_with_both(Path(folder)) as spark,
        Measures(spark, cluster, replace(sizes, trickle_s=1.0), Path(folder)) as warm,
        Measures(spark, cluster, sizes, Path(folder)) as measures,
    ):
        warm.fill(set(options.only))
        for run in range(runs + 1):
            console.print(f"[dim]{f'run {run}/{runs}' if run else 'warming up'}[/]")
            taken: dict[str, dict[str, float]] = {CONNECTOR: {}, OTTLA: {}}
            for name in options.only:
                if not run and name == "many":
                    continue  # the connector needs a quarter of a second for each of its partitions
                for side in (CONNECTOR, OTTLA) if run % 2 else (OTTLA, CONNECTOR):
                    found = (measures if run else warm).take(name, side)
                    taken[side] |= found
                    figures_ = ", ".join(f"{key} {value:.1f}" for key, value in found.items())
                    console.print(f"    [dim]{side}: {figures_}[/]")
            if not run:
                continue
            for side, sample in taken.items():
                samples[side].append(sample)
            if options.json is not None:
                options.json.write_text(json.dumps({"spark": samples}, indent=1) + "\n")
    return samples


def _show(console: Console, samples: Samples, options: argparse.Namespace) -> None:
    found = figures(SPARK_ROWS, samples[CONNECTOR], samples[OTTLA])
    plain = [(f.row.title, f.row.unit, told(f.kafka), told(f.ottla), ratio(f), f.row.goal) for f in found]
    title = f"Median of {len(samples[OTTLA])} (least..most)"
    show(
        console,
        title,
        _HEAD,
        [(*row[:4], coloured_ratio(f), row[5]) for f, row in zip(found, plain, strict=True)],
    )
    missed = [f.row.key for f in found if f.reached is False and f.row.binding]
    verdict = f"Missed: {', '.join(missed)}." if missed else "All goals are reached."
    facts = {name: value for name, value in environment().items() if name not in ("Kafka", "librdkafka")}
    facts |= {"Spark": pyspark.__version__, "connector": CONNECTOR_VERSION}
    for line in (verdict, one_line(facts)):
        console.print(line, highlight=False)
    if options.write is not None:
        text = [f"{title}.", "", markdown(_HEAD, plain), f"{verdict} {one_line(facts)}.", ""]
        write_between(options.write, "spark", "\n".join(text))


if __name__ == "__main__":
    sys.exit(main())
