"""`make bench`: Apache Kafka and Ottla, one after the other, run after run, under the same stock client. [A]

    python -m ottla_bench.side_by_side [--runs 5] [--only startup,latency] [--quick] [--json FILE] [--write PAGE]

Kafka, Ottla, Kafka, Ottla, …: never both at once, and whatever else the machine does hits both. Each turn is a
fresh process on an empty folder. How to read the result: docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from rich.console import Console

from ottla_bench.contenders import KAFKA, OTTLA
from ottla_bench.kafka_jars import KafkaJarsUnavailable
from ottla_bench.load_client import LoadFailed
from ottla_bench.measures import MEASURES, QUICK, Sizes, one_life
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
from ottla_bench.rows import NOTES, ROWS, Figure, figures

Samples = dict[str, list[dict[str, float]]]


def main() -> int:
    options = _options()
    wanted = _wanted(options.only)
    console = Console(width=shutil.get_terminal_size((130, 40)).columns)
    sizes, runs = (QUICK if options.quick else Sizes()), options.runs or (1 if options.quick else 5)
    samples: Samples = {KAFKA: [], OTTLA: []}
    facts = environment()
    try:
        for run in range(1, runs + 1):
            for name in (KAFKA, OTTLA):
                label = f"[dim]run {run}/{runs} {name}[/]"
                console.print(label)
                sample = one_life(name, wanted, sizes, lambda line: console.print(f"    [dim]{line}[/]"))
                samples[name].append(sample)
                _save(options.json, facts, samples)
    except (KafkaJarsUnavailable, LoadFailed) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    _show(console, samples, runs, facts, options.write)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Apache Kafka and Ottla side by side on this machine")
    parser.add_argument("--runs", type=int, help="turns of each side (5)")
    parser.add_argument("--only", default="", help=f"measures, by comma: {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="little data, one turn: to see that it works")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--write", type=Path, help="put the table into this page, where its marks are")
    return parser.parse_args()


def _wanted(text: str) -> set[str]:
    wanted = {name.strip() for name in text.split(",") if name.strip()} or set(MEASURES)
    unknown = wanted - set(MEASURES)
    if unknown:
        sys.exit(f"Unknown: {', '.join(sorted(unknown))}. There are: {', '.join(MEASURES)}.")
    return wanted


def _save(path: Path | None, facts: dict[str, str], samples: Samples) -> None:
    """After every turn, so that an interrupted run is not lost."""
    if path is not None:
        path.write_text(json.dumps({"environment": facts, "samples": samples}, indent=1) + "\n")


def _show(console: Console, samples: Samples, runs: int, facts: dict[str, str], page: Path | None) -> None:
    found = figures(ROWS, samples[KAFKA], samples[OTTLA])
    head = ("", "unit", KAFKA, OTTLA, "ratio", "goal")
    plain = [(f.row.title, f.row.unit, told(f.kafka), told(f.ottla), ratio(f), f.row.goal) for f in found]
    show(
        console,
        f"Median of {runs} (least..most)",
        head,
        [(*row[:4], coloured_ratio(f), row[5]) for f, row in zip(found, plain, strict=True)],
    )
    notes = [_note(note) for note in figures(NOTES, samples[KAFKA], samples[OTTLA])]
    missed = [f.row.key for f in found if f.reached is False and f.row.binding]
    verdict = f"Missed: {', '.join(missed)}." if missed else "All goals that bind are reached."
    for line in (*notes, one_line(facts), verdict):
        console.print(line, highlight=False)
    if page is not None:
        text = [
            f"Median of {runs} (least..most).",
            "",
            markdown(head, plain),
            *(f"- {note}" for note in notes),
        ]
        text += ["", f"{verdict} {one_line(facts)}.", ""]
        write_between(page, "side-by-side", "\n".join(text))


def _note(note: Figure) -> str:
    sides = ((KAFKA, note.kafka), (OTTLA, note.ottla))
    words = ", ".join(f"{name} {told(side)}" for name, side in sides if side is not None)
    return f"{note.row.title}: {words} {note.row.unit}"


if __name__ == "__main__":
    sys.exit(main())
