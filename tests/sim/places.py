"""Where a test of the log takes place: a disk and an empty folder on it."""

from __future__ import annotations

from typing import NamedTuple

from ottla_broker.log.log import Log
from ottla_core.ports.disk import Disk


class Place(NamedTuple):
    disk: Disk
    path: str


def purge(log: Log, now_ms: int) -> None:
    """Remove what housekeeping would let a thread remove."""
    work = log.purge_work(now_ms)
    if work is not None:
        work()
