"""Both disks for tests of the log: what holds on one must hold on the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla_core.real.disk import RealDisk
from sim.disk import SimDisk
from sim.places import Place


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty folder and the disk it is on."""
    if request.param == "real":
        return Place(RealDisk(open_files_max=8), str(tmp_path))
    disk = SimDisk()
    disk.make_dirs("/data")
    disk.sync_dir("/")
    return Place(disk, "/data")
