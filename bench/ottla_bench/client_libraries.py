"""Compares client libraries on one broker: records of 100 bytes per second of the client's CPU. [A]

`make bench-client`. Each library runs in processes of its own, and the libraries take turns, so that a busy minute of
the machine hits all of them. CPU seconds count what a library costs, also on a machine that does other things.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

from rich.console import Console

from ottla_bench.client_load import LIBRARIES
from ottla_bench.report import environment, one_line, show
from ottla_cli.local_cluster import LocalCluster
from ottla_client.sync import Producer

_CHILD_TIMEOUT_S = 180.0
_READ_TOPIC = "bench-read"

#: What users choose between, and the library function of each.
PRODUCE = {
    "Ottla, async `send`": "ottla_send",
    "Ottla, blocking `send`": "ottla_blocking_send",
    "aiokafka, `send`": "aiokafka_send",
    "confluent-kafka, `produce`": "confluent_send",
}
CONSUME = {
    "Ottla, `poll`": "ottla_poll",
    "Ottla, `async for`": "ottla_async_for",
    "Ottla, blocking `for`": "ottla_blocking_for",
    "aiokafka, `getmany`": "aiokafka_getmany",
    "aiokafka, `async for`": "aiokafka_async_for",
    "confluent-kafka, `consume`": "confluent_consume",
}


def _run(cluster: LocalCluster, library: str, topic: str, records: int) -> tuple[float, float]:
    """Records per CPU second, and per second."""
    address = cluster.grpc_bootstrap if library.startswith("ottla") else cluster.kafka_bootstrap
    child = subprocess.run(
        [sys.executable, "-m", "ottla_bench.client_load", library, address, topic, str(records)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=_CHILD_TIMEOUT_S,
        check=True,
    )
    spent = json.loads(child.stdout)
    return spent["records"] / spent["cpu_s"], spent["records"] / spent["wall_s"]


def compare(
    cluster: LocalCluster, runs: int, records: int, say: Console | None = None
) -> dict[str, tuple[float, float]]:
    """By library: the medians of records per CPU second, and per second."""
    with Producer(cluster.grpc_bootstrap) as producer:
        for _ in range(records):
            producer.send(_READ_TOPIC, b"v" * 100, partition=0)
    found: dict[str, list[tuple[float, float]]] = {library: [] for library in LIBRARIES}
    for run in range(runs):
        for library in (*PRODUCE.values(), *CONSUME.values()):
            topic = _READ_TOPIC if library in CONSUME.values() else f"bench-{library}-{run}".replace("_", "-")
            found[library].append(_run(cluster, library, topic, records))
            if say is not None:
                say.print(f"  {library}: {found[library][-1][0]:,.0f} records per CPU second", style="dim")
    return {
        library: (median(cpu for cpu, _ in each), median(wall for _, wall in each))
        for library, each in found.items()
    }


def table(names: dict[str, str], found: dict[str, tuple[float, float]]) -> list[list[str]]:
    """Rows: name, thousand records per CPU second and per second, and the ratios to the best of each other library."""

    def best(prefix: str) -> float:
        return max(found[library][0] for library in names.values() if library.startswith(prefix))

    rows = []
    for name, library in names.items():
        cpu, wall = found[library]
        rows.append(
            [
                name,
                f"{cpu / 1000:.0f} k",
                f"{wall / 1000:.0f} k",
                f"{cpu / best('aiokafka'):.2f}",
                f"{cpu / best('confluent'):.2f}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, default=500_000)
    chosen = parser.parse_args()
    console = Console()
    console.print(one_line(environment()), style="dim")
    with LocalCluster(settings={"num.partitions": "1"}) as cluster:
        found = compare(cluster, chosen.runs, chosen.records, console)
    head = ("client", "per CPU second", "per second", "to aiokafka", "to confluent-kafka")
    show(console, "Produce, records of 100 B", head, table(PRODUCE, found))
    show(console, "Consume, records of 100 B", head, table(CONSUME, found))


if __name__ == "__main__":
    main()
