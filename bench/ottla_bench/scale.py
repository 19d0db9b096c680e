"""`make bench-scale`: the metadata of ten thousand partitions, and of a hundred thousand. [A]

    python -m ottla_bench.scale [--partitions 10000] [--real 6000] [--quick] [--json FILE] [--write PAGE]

Two clusters, one after the other, each of three real brokers and a real etcd. In the first, five simulated brokers
(`simulated_brokers.py`) hold all partitions: brokers then have the metadata and nothing else, and one can die with
more leaderships than the machine could host. In the second the real brokers hold them, with three replicas each; one
is killed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from ottla_bench.etcd_figures import etcd_figures
from ottla_bench.process_stats import CpuWatch, memory_mb
from ottla_bench.report import environment, markdown, one_line, show, write_between
from ottla_bench.rows import number
from ottla_bench.simulated_brokers import SimulatedBrokers
from ottla_bench.takeover import (
    FEW,
    FEW_LED,
    MANY,
    SIMULATED,
    TOPIC_PARTITIONS,
    image_limit,
    partitions_within,
    placement,
    spread_over,
    topics,
)
from ottla_bench.trios import BROKERS, OttlaTrio, Trio, until_whole
from ottla_cli.local_cluster import LocalCluster
from ottla_core.ids import NO_BROKER

#: Partitions created in one request, and those whose creation is measured.
_REQUEST_TOPICS = 10
_LAST = _REQUEST_TOPICS * TOPIC_PARTITIONS
_CREATE_TIMEOUT_S = 180.0
_SETTLE_S = 3.0
_BROKERS_PLANNED = 30
#: Of the memory that a broker's container has, for metadata.
_IMAGE_BUDGET_MB = 256.0
#: Until the last new leader, for up to FEW_LED leaderships and for more.
_GOAL_FEW_S, _GOAL_MANY_S = 2.0, 6.0
#: From kill -9 to the removal of the registration, on a busy machine.
_DETECTION_S = 0.3
_PER_PARTITION = "image, bytes per partition"
_LAST_LEADER, _RATE = "until the last new leader, s", "elections per second"
_DISTINCT = "image, bytes per partition when no two states are equal"
_IMAGE_NAMES = {
    "distinct_bytes": _DISTINCT,
    "shown_ms": "write until an image shows it, ms",
    "apply_one_ms": "applying one election, CPU-ms",
    "apply_full_ms": "applying a transaction of 125 elections, CPU-ms",
    "read_s": "reading everything, s",
    "read_cpu_s": "reading everything, CPU-s",
}


def main() -> int:
    options = _options()
    console = Console()
    where = environment()
    del where["Kafka"]
    bench = _Bench(console)
    try:
        console.print(f"[dim]{options.partitions} partitions on simulated brokers[/]")
        with _trio() as (cluster, trio):
            bench.simulated(cluster, trio, options.partitions)
        if options.real:
            console.print(f"[dim]{options.real} partitions on three brokers[/]")
            with _trio() as (cluster, trio):
                bench.real(cluster, trio, options.real)
    except (KafkaException, RuntimeError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    bench.show(options.partitions, where, options.write)
    if options.json is not None:
        told = {"facts": bench.facts, "deaths": bench.deaths, "environment": where}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Metadata of many partitions: memory, creation, elections, etcd"
    )
    parser.add_argument("--partitions", type=int, default=10_000, help="on the simulated brokers (10000)")
    parser.add_argument(
        "--real", type=int, default=6_000, help="on the three real brokers, 0 for none (6000)"
    )
    parser.add_argument("--quick", action="store_true", help="smoke test: 2,000 partitions each")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--write", type=Path, help="put the table into this page, where its mark is")
    options = parser.parse_args()
    if options.quick:
        options.partitions, options.real = 2_000, 2_000
    least = 2 * _LAST
    if options.partitions < least or options.partitions % _LAST:
        parser.error(f"--partitions takes a multiple of {_LAST}, at least {least}.")
    if options.real and (options.real < least or options.real % _LAST):
        parser.error(f"--real takes 0, or a multiple of {_LAST}, at least {least}.")
    return options


@contextmanager
def _trio() -> Iterator[tuple[LocalCluster, OttlaTrio]]:
    cluster = LocalCluster(brokers=BROKERS)
    try:
        yield cluster, OttlaTrio(cluster)
    finally:
        cluster.stop()


@contextmanager
def _simulation(cluster: LocalCluster, brokers: tuple[int, ...]) -> Iterator[SimulatedBrokers]:
    simulated = SimulatedBrokers(cluster.etcd_endpoint, brokers)
    try:
        simulated.ask("ready")
        yield simulated
    finally:
        simulated.stop()


class _Bench:
    def __init__(self, console: Console) -> None:
        self._console = console
        self.facts: dict[str, float] = {}
        #: Figures by how the broker died.
        self.deaths: dict[str, dict[str, float]] = {}

    def _note(self, name: str, value: float) -> None:
        self.facts[name] = value
        self._say(name, value)

    def _say(self, name: str, value: float) -> None:
        self._console.print(f"    [dim]{name}: {number(value)}[/]", highlight=False)

    def simulated(self, cluster: LocalCluster, trio: OttlaTrio, partitions: int) -> None:
        with _simulation(cluster, SIMULATED) as simulated:
            time.sleep(_SETTLE_S)
            memory, etcd = _memory(trio), etcd_figures(cluster.etcd_endpoint)
            seconds = _create(trio, placement(partitions))
            self._note(f"creating the first {partitions - _LAST:,} partitions, s", seconds[0])
            self._note(f"creating {_LAST:,} more, s", seconds[1])
            time.sleep(_SETTLE_S)
            grown = _memory(trio) - memory
            self._note("image in each broker, MB", grown)
            self._note(_PER_PARTITION, grown * 1e6 / partitions)
            now = etcd_figures(cluster.etcd_endpoint)
            self._note("etcd, file with history, MB", now.size_mb)
            self._note("etcd, bytes per partition", (now.used_mb - etcd.used_mb) * 1e6 / partitions)
            if trio.etcd_pid is not None:
                self._note("etcd, memory, MB", memory_mb(trio.etcd_pid))
            for name, value in simulated.ask("image").items():
                self._note(_IMAGE_NAMES[name], value)
            for broker_id in (FEW, MANY):
                used = _Used(cluster, trio)
                seen = simulated.ask("vanish", broker_id)
                self._note_death("simulated", seen, used.since())
                time.sleep(_SETTLE_S)

    def real(self, cluster: LocalCluster, trio: OttlaTrio, partitions: int) -> None:
        with _simulation(cluster, ()) as observer:
            memory = _memory(trio)
            with trio.changes() as changes:
                seconds = _create(trio, spread_over(range(BROKERS), partitions), real=True)
            self._note(
                f"real brokers: creating the first {partitions - _LAST:,}, until in sync, s", seconds[0]
            )
            self._note(f"real brokers: creating {_LAST:,} more, until in sync, s", seconds[1])
            self._note("real brokers: registrations lost meanwhile", changes.expired)
            time.sleep(_SETTLE_S)
            self._note(f"real brokers: image and {partitions:,} logs in each, MB", _memory(trio) - memory)
            controller = trio.controller()
            victim = min(set(trio.pids) - {controller})
            self._kill(cluster, trio, observer, victim, "kill -9")
            time.sleep(trio.lull_s)
            trio.restart(victim)
            until_whole(trio)
            self._kill(cluster, trio, observer, trio.controller(), "kill -9 of the controller")

    def _kill(
        self, cluster: LocalCluster, trio: OttlaTrio, observer: SimulatedBrokers, victim: int, how: str
    ) -> None:
        observer.ask("expect", victim)
        used = _Used(cluster, trio, without=victim)
        began = time.monotonic()
        trio.kill(victim)
        seen = observer.ask("taken")
        self._note_death(how, {**seen, "began": began}, used.since())

    def _note_death(self, how: str, seen: dict[str, float], used: dict[str, float]) -> None:
        electing = seen["last"] - seen["gone"]
        entries = used.pop("etcd entries")
        figures = {
            "until it is missed, s": seen["gone"] - seen["began"],
            "until the first new leader, s": seen["first"] - seen["began"],
            _LAST_LEADER: seen["last"] - seen["began"],
            _RATE: seen["led"] / electing,
            "etcd log entries": entries,
            "etcd log entries per second": entries / electing,
            **{f"CPU of {name}, s": ms / 1000 for name, ms in used.items()},
        }
        self.deaths[f"{seen['led']:,.0f}, {how}"] = figures
        for name, value in figures.items():
            self._say(f"{seen['led']:,.0f} leaderships, {how}: {name}", value)

    def show(self, partitions: int, where: dict[str, str], page: Path | None) -> None:
        title = f"Metadata of {partitions:,} partitions"
        rows = [(name, number(value)) for name, value in self.facts.items()]
        show(self._console, title, ("", "figure"), rows)
        names = dict.fromkeys(name for figures in self.deaths.values() for name in figures)
        deaths = [
            (name, *(number(f[name]) if name in f else "-" for f in self.deaths.values())) for name in names
        ]
        head = ("a broker dies, with leaderships", *self.deaths)
        show(self._console, "Takeovers", head, deaths)
        self._console.print(*self._limits(), sep="\n", markup=False)
        text = [
            markdown((title, "figure"), rows),
            markdown(head, deaths),
            *self._limits(),
            "",
            f"{one_line(where)}.",
            "",
        ]
        if page is not None:
            write_between(page, f"scale-{partitions}", "\n".join(text))

    def _limits(self) -> list[str]:
        """What the figures allow in a larger cluster, if nothing but the number of brokers changes."""
        memory = image_limit(_IMAGE_BUDGET_MB, self.facts[_DISTINCT])
        text = [
            f"{_IMAGE_BUDGET_MB:.0f} MB for the image in each broker are enough for {memory:,} partitions."
        ]
        for name, figures in self.deaths.items():
            goal = goal_s(name)
            took = figures[_LAST_LEADER]
            most = partitions_within(goal, figures[_RATE], _BROKERS_PLANNED, _DETECTION_S)
            verdict = "within" if took <= goal else "over"
            text.append(
                f"Death with {name}: {took:.2f} s is {verdict} {goal:.0f} s; at this rate it is {goal:.0f} s with"
                f" {most:,} partitions on {_BROKERS_PLANNED} brokers."
            )
        return text


def goal_s(death: str) -> float:
    """The goal for a death by its name, which begins with the number of leaderships."""
    led = int(death.partition(", ")[0].replace(",", ""))
    return _GOAL_FEW_S if led <= FEW_LED else _GOAL_MANY_S


class _Used:
    """CPU of the roles, and entries of etcd's log, since it was made."""

    def __init__(self, cluster: LocalCluster, trio: OttlaTrio, without: int = NO_BROKER) -> None:
        self._endpoint = cluster.etcd_endpoint
        controller = trio.controller()
        brokers = {i: pid for i, pid in trio.pids.items() if i != without}
        self._pids = {} if controller == without else {"the controller": brokers.pop(controller)}
        self._pids["another broker"] = brokers[min(brokers)]
        if trio.etcd_pid is not None:
            self._pids["etcd"] = trio.etcd_pid
        self._entries = etcd_figures(self._endpoint).entries
        self._watch = CpuWatch(self._pids)

    def since(self) -> dict[str, float]:
        return {**self._watch.used_ms(), "etcd entries": etcd_figures(self._endpoint).entries - self._entries}


def _create(trio: Trio, placed: list[tuple[int, int, int]], *, real: bool = False) -> tuple[float, float]:
    """Seconds for all but the last _LAST, and for those; of `real` replicas until they are in sync."""
    admin = AdminClient({"bootstrap.servers": trio.bootstrap, "log_level": 0})
    made = topics(placed)
    took = [0.0, 0.0]
    for first in range(0, len(made), _REQUEST_TOPICS):
        wanted = [
            NewTopic(f"scale-{first + i:04}", num_partitions=len(replicas), replica_assignment=replicas)
            for i, replicas in enumerate(made[first : first + _REQUEST_TOPICS])
        ]
        began = time.monotonic()
        for future in admin.create_topics(wanted, operation_timeout=120, request_timeout=150).values():
            future.result(_CREATE_TIMEOUT_S)
        if real:
            until_whole(trio)
        took[first + _REQUEST_TOPICS >= len(made)] += time.monotonic() - began
    return took[0], took[1]


def _memory(trio: Trio) -> float:
    return median(memory_mb(pid) for pid in trio.pids.values())


if __name__ == "__main__":
    sys.exit(main())
