"""The metrics of this broker as Prometheus text: what is collected first, and the page in slices. [S]

Served over HTTP (`exporter.py`) and as `Admin.DescribeMetrics`, which needs no other port, and has TLS and logins.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import TypeAlias

import structlog

from ottla_broker.exposed import Family, Sample
from ottla_broker.exposition import text_steps
from ottla_broker.metrics import Metrics
from ottla_broker.steps import Steps
from ottla_core import compiled
from ottla_core.version import version_of

_log = structlog.get_logger("ottla.metrics")

#: For metrics that need the disk or other brokers; Prometheus gives up after 10 s by default.
_COLLECT_S = 2.0
_BUILD_DOC = (
    "Always 1; version, Python, and whether the modules of the hot path run compiled or as pure Python."
)

#: Runs the slices of a page, each when it is its turn.
RunSteps: TypeAlias = Callable[[Steps[bytes]], Awaitable[bytes]]


class MetricsPages:
    def __init__(self, metrics: Metrics, run: RunSteps, *, timeout_s: float) -> None:
        """`timeout_s` bounds a collection."""
        self._metrics = metrics
        self._run = run
        self._timeout_s = timeout_s
        self._collecting: asyncio.Task[None] | None = None

    async def page(self, names: Collection[str] = ()) -> bytes:
        """All families, or those with these names."""
        await self._collect()
        families = chain(self._metrics.exposed(), process_families())
        return await self._run(text_steps(_named(families, names) if names else families))

    async def stop(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)

    async def _collect(self) -> None:
        """Have the metrics collected that need the disk or other brokers. One collection serves all readers."""
        if self._collecting is None:
            self._collecting = asyncio.get_running_loop().create_task(self._collect_all())
            self._collecting.add_done_callback(self._on_collected)
        with suppress(TimeoutError):
            async with asyncio.timeout(_COLLECT_S):
                await asyncio.shield(self._collecting)

    async def _collect_all(self) -> None:
        async with asyncio.timeout(self._timeout_s):
            for collect in self._metrics.collectors:
                try:
                    await collect()
                except Exception:
                    # Stale values are better than none, and other metrics are not affected.
                    _log.exception("metrics not collected")

    def _on_collected(self, task: asyncio.Task[None]) -> None:
        self._collecting = None
        if not task.cancelled() and isinstance(task.exception(), TimeoutError):
            _log.warning("metrics not collected in time")


def _named(families: Iterator[Family | None], names: Collection[str]) -> Iterator[Family | None]:
    return (each for each in families if each is None or each.name in names)


def process_families() -> list[Family]:
    """CPU, memory and descriptors under the names that every Prometheus dashboard knows."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    rows = [
        ("process_cpu_seconds_total", "counter", "CPU time of the process.", usage.ru_utime + usage.ru_stime)
    ]
    with suppress(OSError, ValueError, IndexError):  # no /proc outside Linux: fewer metrics, no error
        with open("/proc/self/statm", "rb") as statm:
            pages = statm.read().split()
        page = os.sysconf("SC_PAGE_SIZE")
        rows.append(("process_virtual_memory_bytes", "gauge", "Virtual memory.", int(pages[0]) * page))
        rows.append(("process_resident_memory_bytes", "gauge", "Resident memory.", int(pages[1]) * page))
        rows.append(("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd"))))
        rows.append(("process_start_time_seconds", "gauge", "Start of the process since 1970.", _started_s()))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    rows.append(("process_max_fds", "gauge", "Limit of open file descriptors.", limit))
    return [
        *(Family(name, kind, doc, [Sample("", (), value)]) for name, kind, doc, value in rows),
        Family("ottla_build_info", "gauge", _BUILD_DOC, [Sample("", _build(), 1)]),
    ]


@cache
def _build() -> tuple[tuple[str, str], ...]:
    code = "compiled" if compiled.is_in_use() else "pure"
    return ("version", version_of()), ("python", platform.python_version()), ("code", code)


def _started_s() -> float:
    """When the kernel started this process: boot time plus ticks since boot (proc(5))."""
    with open("/proc/self/stat", "rb") as stat:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])
    with open("/proc/stat", "rb") as stat:
        boot = [int(line.split()[1]) for line in stat if line.startswith(b"btime ")]
    return boot[0] + ticks / os.sysconf("SC_CLK_TCK")
