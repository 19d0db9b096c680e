"""Where a test of the log takes place: a disk and an empty folder on it."""

from __future__ import annotations

from typing import NamedTuple

from ottla_core.ports.disk import Disk


class Place(NamedTuple):
    disk: Disk
    path: str
