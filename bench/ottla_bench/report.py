"""Results as tables: for the terminal, and as Markdown between two marks of a page. [A]"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ottla_bench.kafka_jars import KAFKA_VERSION
from ottla_bench.rows import Figure, Spread, number


def environment() -> dict[str, str]:
    """What the figures depend on, to be written beside them."""
    from confluent_kafka import libversion

    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "CPU": f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores",
        "memory": f"{memory_bytes / 1e9:.0f} GB",
        "Linux": platform.release().split("-")[0],
        "Python": platform.python_version(),
        "Kafka": KAFKA_VERSION,
        "librdkafka": libversion()[0],
        "load before": f"{os.getloadavg()[0]:.1f}",
        "date": time.strftime("%Y-%m-%d"),
    }


def one_line(facts: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in facts.items())


def told(side: Spread | None) -> str:
    if side is None:
        return "-"
    return f"{number(side.median)} ({number(side.least)}..{number(side.most)})"


def ratio(figure: Figure) -> str:
    return "-" if figure.ratio is None else f"{figure.ratio:.2f}"


def coloured_ratio(figure: Figure) -> str:
    missed = "red" if figure.row.binding else "yellow"
    colour = {True: "green", False: missed, None: "default"}[figure.reached]
    return f"[{colour}]{ratio(figure)}[/]"


def show(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *(["---:"] * (len(head) - 1))], *rows]
    return "\n".join("| " + " | ".join(cell.strip() for cell in line) + " |" for line in lines) + "\n"


def write_between(page: Path, mark: str, text: str) -> None:
    """Replace what is between `<!-- mark -->` and `<!-- /mark -->`. ValueError if the page has no such place."""
    first, last = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(first)
    _, closed, after = rest.partition(last)
    if not found or not closed:
        raise ValueError(f"{page} has no {first.strip()} … {last}")
    page.write_text(f"{before}{first}{text}{last}{after}", encoding="utf-8")
