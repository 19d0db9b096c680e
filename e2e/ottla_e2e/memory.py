"""Memory use of a cluster's containers, from the counters of their cgroups. [A]

Read inside each container, where the kernel shows the container's own cgroup. `anonymous` is memory that the program
has allocated; `in use` adds the active page cache, as Kubernetes counts it: all charged memory, less what the kernel
could drop at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla_e2e.kube import Kube

_READ = """
cd /sys/fs/cgroup
if [ -e memory.current ]; then cat memory.current; cat memory.stat
else cat memory/memory.usage_in_bytes; cat memory/memory.stat; fi
"""
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Usage:
    pod: str
    anonymous: int
    in_use: int
    charged: int


def of_pod(kube: Kube, pod: str) -> Usage:
    return parse(pod, kube.run("exec", pod, "--", "sh", "-c", _READ))


def parse(pod: str, counters: str) -> Usage:
    """The first line is the charged memory, the others are memory.stat, of cgroup version 1 or 2."""
    first, *lines = counters.strip().splitlines()
    stat = {name: int(value) for name, value in (line.split() for line in lines)}
    charged = int(first)
    anonymous = stat["total_rss"] if "total_rss" in stat else stat["anon"]
    droppable = stat["total_inactive_file"] if "total_inactive_file" in stat else stat["inactive_file"]
    return Usage(pod, anonymous, max(charged - droppable, 0), charged)


def table(usages: Sequence[Usage]) -> list[str]:
    total = Usage(
        "together",
        sum(each.anonymous for each in usages),
        sum(each.in_use for each in usages),
        sum(each.charged for each in usages),
    )
    lines = [f"{'MiB':<42}{'anonymous':>11}{'in use':>9}{'charged':>9}"]
    for each in [*usages, total]:
        mib = (each.anonymous / _MIB, each.in_use / _MIB, each.charged / _MIB)
        lines.append(f"{each.pod:<42}{mib[0]:>11.1f}{mib[1]:>9.1f}{mib[2]:>9.1f}")
    return lines
