"""Turns of Kafka and Ottla, what was asked of them, and the table that comes of it. [A]

Kafka, Ottla, Kafka, Ottla, …: never both at once, and whatever else the machine does hits both. Each turn is a
fresh start on an empty folder. How to read the result: docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ottla_bench.contenders import KAFKA, OTTLA
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
from ottla_bench.rows import Figure, Row, figures

Samples = dict[str, list[dict[str, float]]]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    #: Names its place in the page, and in the JSON file.
    mark: str
    description: str
    #: What `--only` may name.
    measures: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[Row]
    #: One turn: side, measures, whether to use little data, and a callback for progress. Returns its samples.
    life: Callable[[str, Collection[str], bool, Say], list[dict[str, float]]]


def compare(comparison: Comparison) -> int:
    # On a signal, stop the started processes as well.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options = _options(comparison)
    wanted = _wanted(comparison, options.only)
    console = Console(width=shutil.get_terminal_size((130, 40)).columns)
    runs = options.runs or (1 if options.quick else 5)
    samples: Samples = {KAFKA: [], OTTLA: []}
    sides = [name for name in (KAFKA, OTTLA) if options.side in (None, name.lower())]
    facts = environment()
    try:
        for run in range(1, runs + 1):
            for name in sides:
                console.print(f"[dim]run {run}/{runs} {name}[/]")
                samples[name] += comparison.life(
                    name, wanted, options.quick, lambda line: console.print(f"    [dim]{line}[/]")
                )
                _save(options.json, comparison.mark, facts, samples)
    except (KafkaJarsUnavailable, LoadFailed) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    _show(console, comparison, samples, runs, facts, options.write)
    return 0


def _options(comparison: Comparison) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=comparison.description)
    parser.add_argument("--runs", type=int, help="turns of each side (5)")
    parser.add_argument("--only", default="", help=f"measures, by comma: {', '.join(comparison.measures)}")
    parser.add_argument("--side", choices=[KAFKA.lower(), OTTLA.lower()], help="one side, without the other")
    parser.add_argument("--quick", action="store_true", help="smoke test: little data, one turn")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--write", type=Path, help="put the table into this page, where its marks are")
    return parser.parse_args()


def _wanted(comparison: Comparison, text: str) -> set[str]:
    wanted = {name.strip() for name in text.split(",") if name.strip()} or set(comparison.measures)
    unknown = wanted - set(comparison.measures)
    if unknown:
        sys.exit(f"Unknown: {', '.join(sorted(unknown))}. There are: {', '.join(comparison.measures)}.")
    return wanted


def _save(path: Path | None, mark: str, facts: dict[str, str], samples: Samples) -> None:
    """After every turn, so that an interrupted run is not lost. Other comparisons in the file stay."""
    if path is None:
        return
    try:
        kept = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        kept = {}
    kept[mark] = {"environment": facts, "samples": samples}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def _show(
    console: Console,
    comparison: Comparison,
    samples: Samples,
    runs: int,
    facts: dict[str, str],
    page: Path | None,
) -> None:
    found = figures(comparison.rows, samples[KAFKA], samples[OTTLA])
    head = ("", "unit", KAFKA, OTTLA, "ratio", "goal")
    plain = [(f.row.title, f.row.unit, told(f.kafka), told(f.ottla), ratio(f), f.row.goal) for f in found]
    show(
        console,
        f"Median of {runs} (least..most)",
        head,
        [(*row[:4], coloured_ratio(f), row[5]) for f, row in zip(found, plain, strict=True)],
    )
    notes = [_note(note) for note in figures(comparison.notes, samples[KAFKA], samples[OTTLA])]
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
        write_between(page, comparison.mark, "\n".join(text))


def _note(note: Figure) -> str:
    sides = ((KAFKA, note.kafka), (OTTLA, note.ottla))
    words = ", ".join(f"{name} {told(side)}" for name, side in sides if side is not None)
    return f"{note.row.title}: {words} {note.row.unit}"
