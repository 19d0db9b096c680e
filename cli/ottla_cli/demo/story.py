"""The demo from start to end: a cluster, its chapters, the clean-up, and a check that nothing is left. [A]

Each chapter is a module that gets the running cluster, shows what it does, and raises `Failure` if a record is
missing, failed or wrong: the demo is also a test.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, fields

import typer
from rich.console import Console
from rich.panel import Panel

from ottla_cli.child import identity
from ottla_cli.demo import activity, letters, postcards
from ottla_cli.failure import Failure
from ottla_cli.local_cluster import QUICK_GROUPS, LocalCluster
from ottla_cli.quantities import show_count, show_duration

BROKERS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the chapters; 0 skips a chapter."""

    records: int = 1_000_000
    letters: int = 15_000
    events: int = 50_000


def demo(sizes: Sizes) -> None:
    """Run all chapters; Failure if one of them fails."""
    console = Console(highlight=False)
    console.print(
        Panel.fit(
            f"[bold]Ottla[/]: a commit log that Kafka's clients speak. Three brokers on this machine, "
            f"{show_count(sizes.records)} records through both protocols, a broker killed under load, a Spark job.",
            border_style="cyan",
        )
    )
    began = time.monotonic()
    cluster = LocalCluster(
        brokers=BROKERS, settings=QUICK_GROUPS, say=lambda sentence: console.print(sentence, markup=False)
    )
    with console.status(f"Starting etcd and {BROKERS} brokers …"):
        cluster.start()
    processes = _pids(cluster)
    try:
        console.print(
            f"{cluster.etcd_name} and {BROKERS} brokers, up in {show_duration(time.monotonic() - began)}:"
        )
        for broker in cluster.brokers.values():
            console.print(
                f"  [cyan]broker {broker.id}[/]  gRPC {broker.grpc}  Kafka {broker.kafka}  pid {broker.pid}"
            )
        _chapters(console, cluster, sizes)
        processes |= _pids(cluster)
    finally:
        # A second Ctrl-C must not interrupt the clean-up.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with console.status("Stopping …"):
            cluster.stop()
    left = [pid for pid in processes if identity(pid) is not None]
    if left or os.path.exists(cluster.data_dir):
        raise Failure(f"The clean-up left processes {left}, folder {cluster.data_dir}.")
    console.print(
        f"\n[bold green]✓[/] Stopped; no process and no file is left. {show_duration(time.monotonic() - began)} in all."
    )
    console.print(
        "  Next: [cyan]ottla up[/] runs a cluster until Ctrl-C, [cyan]ottla --help[/] shows the rest."
    )


def _chapters(console: Console, cluster: LocalCluster, sizes: Sizes) -> None:
    if sizes.records:
        _heading(
            console,
            1,
            f"{show_count(sizes.records)} postcards, out through gRPC, back through gRPC and Kafka's protocol",
        )
        postcards.show(console, cluster, sizes.records)
    if sizes.letters:
        _heading(console, 2, "kill -9 in the middle of writing, with a group of consumers reading along")
        letters.show(console, cluster, sizes.letters)
    if sizes.events:
        _heading(console, 3, "Visits to a shop, counted by a Spark streaming job")
        activity.show(console, cluster, sizes.events)


def _heading(console: Console, number: int, title: str) -> None:
    console.print()
    console.rule(f"[bold]{number} · {title}[/]", align="left", style="cyan")


def _pids(cluster: LocalCluster) -> set[int]:
    return {*cluster.pids.values(), *([cluster.etcd.child.pid] if cluster.etcd else [])}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ottla_cli.demo", description="What Ottla is, in three chapters."
    )
    for each in fields(Sizes):
        parser.add_argument(f"--{each.name}", type=int, default=each.default, help="0 skips the chapter")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    # Warnings about the killed broker are expected.
    logging.getLogger("ottla_client").setLevel(logging.ERROR)
    # SIGTERM cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, interrupt)
    try:
        demo(Sizes(**vars(parser.parse_args(argv))))
    except Failure as failed:
        sys.stderr.write(f"demo: {failed}\n")
        return failed.exit_code
    except (KeyboardInterrupt, typer.Exit):
        sys.stderr.write("demo: interrupted; everything was stopped and removed.\n")
        return 130
    return 0
