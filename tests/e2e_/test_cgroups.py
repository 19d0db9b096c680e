"""The node's cgroups on both versions, in folders that look like the kernel's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ottla_e2e.images import ROOT


def shell(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A line of shell with the node's functions, looking at `root` instead of /sys/fs/cgroup."""
    source = f'set -euo pipefail; . "{ROOT}/e2e/node/settings.sh"; cgroup_root="{root}"; {script}'
    return subprocess.run(["bash", "-c", source], capture_output=True, text=True, timeout=30, check=False)


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def version_1(root: Path) -> None:
    """As systemd mounts it beside version 2, which has no controllers then."""
    for each in ("cpu,cpuacct", "cpuset", "memory", "systemd", "unified"):
        write(root / each / "cgroup.procs")
    (root / "cpu").symlink_to("cpu,cpuacct")
    write(root / "unified/cgroup.controllers")
    write(root / "cpuset/cpuset.cpus", "0-1\n")
    write(root / "cpuset/cpuset.mems", "0\n")
    # The kernel makes these with their folder.
    write(root / "cpu,cpuacct/ottla-node/cpu.shares", "1024\n")


def version_2(root: Path, controllers: str = "cpuset cpu io memory hugetlb pids rdma misc\n") -> None:
    write(root / "cgroup.controllers", controllers)
    write(root / "cgroup.procs")
    write(root / "cgroup.subtree_control")
    for slice_ in ("init.scope", "system.slice", "user.slice"):
        write(root / slice_ / "cgroup.procs")
    write(root / "ottla-node/cgroup.subtree_control")
    write(root / "ottla-node/cpu.weight", "100\n")


def test_version_1_has_a_folder_in_each_hierarchy(tmp_path: Path) -> None:
    version_1(tmp_path)
    found = shell(tmp_path, "cgroup_folders").stdout.split()
    names = ("cpu", "cpu,cpuacct", "cpuset", "memory", "systemd", "unified")
    assert set(found) == {f"{tmp_path}/{each}/ottla-node" for each in names}


def test_version_1_is_made_fit(tmp_path: Path) -> None:
    version_1(tmp_path)
    done = shell(tmp_path, "cgroup_make")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "memory/ottla-node").is_dir()
    assert (tmp_path / "cpuset/ottla-node/cpuset.cpus").read_text() == "0-1\n"
    assert (tmp_path / "cpuset/ottla-node/cpuset.mems").read_text() == "0\n"
    assert (tmp_path / "cpu/ottla-node/cpu.shares").read_text() == "8192\n"


def test_version_2_has_one_folder(tmp_path: Path) -> None:
    version_2(tmp_path)
    assert shell(tmp_path, "cgroup_folders").stdout.split() == [f"{tmp_path}/ottla-node"]


def test_version_2_hands_on_what_kubelet_needs(tmp_path: Path) -> None:
    version_2(tmp_path)
    # The kernel takes one word at a time and remembers them; a file remembers the last.
    for folder in (tmp_path, tmp_path / "ottla-node"):
        (folder / "cgroup.subtree_control").unlink()
        (folder / "cgroup.subtree_control").symlink_to("/dev/stdout")
    done = shell(tmp_path, "cgroup_make")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"+{each}" for each in ("cpuset", "cpu", "memory", "pids") for _ in (1, 2)]
    assert (tmp_path / "ottla-node/cpu.weight").read_text() == "800\n"


def test_version_2_says_what_is_missing(tmp_path: Path) -> None:
    version_2(tmp_path, "cpuset cpu io pids\n")
    done = shell(tmp_path, "cgroup_make")
    assert done.returncode == 1
    assert "kubelet needs the cgroup controller memory" in done.stderr


def test_version_2_inside_a_container_says_what_to_do(tmp_path: Path) -> None:
    """The kernel refuses to hand on controllers from a group that has processes of its own."""
    version_2(tmp_path)
    (tmp_path / "cgroup.subtree_control").unlink()
    (tmp_path / "cgroup.subtree_control").symlink_to("/dev/full")
    done = shell(tmp_path, "cgroup_make")
    assert done.returncode == 1
    assert "cannot enable the controller cpuset" in done.stderr
