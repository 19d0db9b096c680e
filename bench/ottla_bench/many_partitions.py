"""`make bench-partitions`: one broker with ten thousand partitions beside one that has only those written to. [A]

    python -m ottla_bench.many_partitions [--runs 5] [--quick] [--json FILE] [--write PAGE]

The crowded broker hosts 100 topics of 100 partitions; the roomy one hosts one topic of one partition and one of
a hundred. Both live at the same time, since idle ones cost next to nothing (which is measured too), and are
written to in turn: roomy, crowded, roomy, crowded, … The crowded one is then left alone, stopped, and killed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from ottla_bench import load_client
from ottla_bench.contenders import BROKER, ETCD, Running, await_metadata, start_ottla
from ottla_bench.load_client import Job, LoadFailed
from ottla_bench.page_cache import touch_pages
from ottla_bench.process_stats import CpuWatch, cpu_ms, memory_mb
from ottla_bench.report import markdown, show, told, write_between
from ottla_bench.rows import number, spread
from ottla_cli.local_cluster import LocalCluster

_TOPICS = 100
_PARTITIONS = 100
#: A rate within this of the roomy broker's is as good as the same.
_LEAST_RATIO = 0.85
_STARTUP_S_MAX = 5.0
_RESTART_TIMEOUT_S = 120.0
_SETTLE_S = 5.0
_ONE, _HUNDRED = "one partition", "a hundred partitions"
_ROOMY, _CROWDED = "roomy", "crowded"


def main() -> int:
    options = _options()
    console = Console()
    runs, records = (1, 20_000) if options.quick else (options.runs, options.records)
    idle_s = 3.0 if options.quick else 20.0
    roomy, crowded = LocalCluster(), LocalCluster()
    try:
        bench = _Bench(console, roomy, crowded)
        bench.fill()
        bench.write(runs, records)
        bench.idle(idle_s)
        bench.restart()
    except LoadFailed as error:
        console.print(str(error), style="red", markup=False)
        return 1
    finally:
        crowded.stop()
        roomy.stop()
    bench.show(runs, options.write)
    if options.json is not None:
        options.json.write_text(json.dumps({"rates": bench.rates, "facts": bench.facts}, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ten thousand partitions in one broker")
    parser.add_argument("--runs", type=int, default=5, help="turns of each broker (5)")
    parser.add_argument("--records", type=int, default=300_000, help="records of 1 KB per turn")
    parser.add_argument("--quick", action="store_true", help="smoke test: little data, one turn")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--write", type=Path, help="put the tables into this page, where its marks are")
    return parser.parse_args()


class _Bench:
    def __init__(self, console: Console, roomy: LocalCluster, crowded: LocalCluster) -> None:
        self._console = console
        self._crowded = crowded
        self._sides: dict[str, Running] = {_ROOMY: start_ottla(roomy), _CROWDED: start_ottla(crowded)}
        #: MB/s by what was written to, by broker.
        self.rates: dict[str, dict[str, list[float]]] = {
            what: {side: [] for side in self._sides} for what in (_ONE, _HUNDRED)
        }
        self.facts: dict[str, float] = {}

    def _job(self, kind: str, side: str, topic: str, **more: int) -> dict[str, float]:
        return load_client.run(Job(kind, self._sides[side].bootstrap, topic, **more))  # type: ignore[arg-type]

    def _note(self, name: str, value: float) -> None:
        self.facts[name] = value
        self._console.print(f"    [dim]{name}: {number(value)}[/]")

    def fill(self) -> None:
        self._console.print(f"[dim]creating {_TOPICS} topics of {_PARTITIONS} partitions[/]")
        took = self._job("create", _CROWDED, "bench", topics=_TOPICS, partitions=_PARTITIONS)
        self._note("creating 10,000 partitions, s", took["seconds"])
        self._job("create", _ROOMY, "bench-000", partitions=1)
        self._job("create", _ROOMY, "bench-001", partitions=_PARTITIONS)

    def write(self, runs: int, records: int) -> None:
        """`bench-000` is written to in its first partition, `bench-001` in all hundred."""
        self._turn(_ONE, records // 10)
        self._turn(_HUNDRED, records // 10)
        self.rates = {what: {side: [] for side in self._sides} for what in self.rates}
        for run in range(1, runs + 1):
            self._console.print(f"[dim]run {run}/{runs}[/]")
            for what in (_ONE, _HUNDRED):
                self._turn(what, records)

    def _turn(self, what: str, records: int) -> None:
        for side, server in self._sides.items():
            topic, partitions = ("bench-000", 1) if what == _ONE else ("bench-001", _PARTITIONS)
            touch_pages(records * 1250)
            watch = CpuWatch(server.processes)
            result = self._job("produce", side, topic, partitions=partitions, records=records)
            per_mb = watch.used_ms()[BROKER] / result["megabytes"]
            self.rates[what][side].append(result["mb_per_s"])
            rate = result["mb_per_s"]
            self._console.print(f"    [dim]{what}, {side}: {rate:.0f} MB/s, {per_mb:.2f} CPU-ms/MB[/]")

    def idle(self, seconds: float) -> None:
        self._console.print(f"[dim]idle for {seconds:.0f} s[/]")
        time.sleep(_SETTLE_S)
        watches = {side: CpuWatch(server.processes) for side, server in self._sides.items()}
        time.sleep(seconds)
        for side, watch in watches.items():
            for role, used_ms in watch.used_ms().items():
                self._note(f"idle CPU, {side} {role}, % of a core", used_ms / 10 / seconds)
        self._memory("idle")

    def _memory(self, when: str) -> None:
        for side, server in self._sides.items():
            for role, pid in server.processes.items():
                self._note(f"memory {when}, {side} {role}, MB", memory_mb(pid))

    def restart(self) -> None:
        """Twice: after a clean stop, and after kill -9 with writes just behind it."""
        self._console.print("[dim]stopping and starting the crowded broker[/]")
        began = time.monotonic()
        self._crowded.stop_broker(0)
        self._note("clean stop, s", time.monotonic() - began)
        self._start_again("start-up after a clean stop")
        self._job("produce", _CROWDED, "bench-001", partitions=_PARTITIONS, records=20_000)
        self._crowded.kill(0)
        self._start_again("start-up after kill -9")
        self._job("produce", _CROWDED, "bench-001", partitions=_PARTITIONS, records=20_000)
        self._memory("after the restarts")

    def _start_again(self, what: str) -> None:
        """Exec to a broker that answers and leads; etcd has not stopped."""
        began = time.monotonic()
        self._crowded.restart(0, _RESTART_TIMEOUT_S)
        await_metadata(self._crowded.kafka_bootstrap, began + _RESTART_TIMEOUT_S)
        took_s = time.monotonic() - began
        before = self._sides[_CROWDED]
        processes = {BROKER: self._crowded.pids[0], ETCD: before.processes[ETCD]}
        self._sides[_CROWDED] = Running(self._crowded.kafka_bootstrap, processes, took_s)
        self._note(f"{what}, s", took_s)
        # The same on any machine, however busy: what of it was the broker's own work.
        self._note(f"{what}, broker CPU, s", cpu_ms(processes[BROKER]) / 1000)

    def show(self, runs: int, page: Path | None) -> None:
        head = ("", _ROOMY, _CROWDED, "ratio", "goal")
        rows = []
        for what, sides in self.rates.items():
            roomy, crowded = spread(sides[_ROOMY]), spread(sides[_CROWDED])
            share = crowded.median / roomy.median
            rows.append((what, told(roomy), told(crowded), f"{share:.2f}", f"≥ {_LEAST_RATIO}"))
        title = f"Writing 1 KB records, MB/s: median of {runs} (least..most)"
        show(self._console, title, head, rows)
        facts = [(name, number(value)) for name, value in self.facts.items()]
        show(self._console, "Around it", ("", "figure"), facts)
        clean = self.facts["start-up after a clean stop, s"]
        verdict = "within" if clean <= _STARTUP_S_MAX else "over"
        sentence = f"Start-up after a clean stop is {verdict} {_STARTUP_S_MAX:.0f} s."
        self._console.print(sentence)
        if page is not None:
            text = [f"{title}.", "", markdown(head, rows), markdown(("", "figure"), facts), sentence, ""]
            write_between(page, "many-partitions", "\n".join(text))


if __name__ == "__main__":
    sys.exit(main())
