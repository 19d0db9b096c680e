"""CPU time and memory of a process, as the kernel counts them. [A]

CPU is user plus system time of all threads, those that ended included: what a broker costs on a machine where
something else wants the core. Ticks are 10 ms, so measure loads of seconds. Memory is RSS, all resident pages:
PSS would divide Python's libraries between the broker and whatever else happens to run Python just now.
"""

from __future__ import annotations

import os

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_ms(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The command's name, in parentheses, may contain anything.
        fields = file.read().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) * 1000.0 / _TICKS_PER_S


def memory_mb(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/{pid}/smaps_rollup has no line Rss")


class CpuWatch:
    """CPU of several processes since the watch was made."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes
        self._before = {name: cpu_ms(pid) for name, pid in processes.items()}

    def used_ms(self) -> dict[str, float]:
        return {name: cpu_ms(pid) - self._before[name] for name, pid in self._processes.items()}
