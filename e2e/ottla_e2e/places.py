"""Where the run takes place: a given cluster, kind, or a node that is made on this machine and taken down again. [A]

E2E_CONTEXT=…       this kubectl context. Images are put there by E2E_LOAD, a command that takes an archive as its
                    last argument (`k3d image import`, `minikube image load`, `e2e/push.sh` with E2E_REGISTRY); left
                    out, they are there already (`make images`).
kind                when Docker answers and kind is installed
a node of our own   else; needs root (e2e/node)
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

from ottla_e2e import guest
from ottla_e2e.bounded import run_bounded
from ottla_e2e.images import ROOT, Images
from ottla_e2e.kube import Kube
from ottla_e2e.say import Fault, say

_NODE = ROOT / "e2e/node"
#: Fourteen minutes of CPU time on a machine with two cores; a busy one takes several times that.
_BUILD_TIMEOUT_S = 3600.0
#: Checked by scripts/setup.sh, which installs what is missing: command:package.
_NODE_PACKAGES = (
    "containerd:containerd", "runc:runc", "/usr/lib/cni/bridge:containernetworking-plugins", "iptables:iptables",
    "nft:nftables", "ip:iproute2", "pgrep:procps", "openssl:openssl", "curl:curl", "unshare:util-linux",
)  # fmt: skip


def cache() -> Path:
    return Path(os.environ.get("OTTLA_NODE_HOME", Path.home() / ".cache/ottla-node"))


class Place(Protocol):
    name: str
    #: Made for the run, and removed with everything in it.
    is_new: bool

    def prepare(self) -> None:
        """Slow preparations that can run while images are built."""

    def open(self, images: Images) -> Kube: ...

    def load(self, archive: Path) -> None: ...

    def kill(self, kube: Kube, pod: str) -> str:
        """Kill a pod as hard as this cluster allows, at best kill -9 for all its processes; returns a description."""

    def explain(self) -> None:
        """Diagnostics that only this kind of cluster has."""

    def close(self) -> None: ...


def choose() -> Place:
    context = os.environ.get("E2E_CONTEXT")
    if context:
        return Given(context)
    if shutil.which("kind") and _answers(["docker", "info"]):
        return Kind()
    return OwnNode()


def _answers(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


class Given:
    """An existing cluster. The run changes nothing that was there before."""

    is_new = False

    def __init__(self, context: str) -> None:
        self.name = f"the cluster of the context {context}"
        self._context = context
        #: Set once the run knows that it may delete everything that it creates there.
        self._guest_of: Kube | None = None

    def prepare(self) -> None:
        _need_kubectl()

    def open(self, images: Images) -> Kube:
        kube = Kube("kubectl", {}, self._context)
        guest.check(kube)
        self._guest_of = kube
        return kube

    def load(self, archive: Path) -> None:
        command = shlex.split(os.environ.get("E2E_LOAD", ""))
        if command:
            subprocess.run([*command, str(archive)], check=True, timeout=900)
        else:
            say("    E2E_LOAD is not set: the images must be in the cluster already")

    def kill(self, kube: Kube, pod: str) -> str:
        return force_delete(kube, pod)

    def explain(self) -> None:
        pass

    def close(self) -> None:
        if self._guest_of is not None:
            guest.leave(self._guest_of)


class Kind:
    """A kind cluster, created for the run and deleted after it. The user's kubeconfig and current context stay."""

    name = "kind"
    is_new = True
    _cluster = "ottla-e2e"

    def __init__(self) -> None:
        self._kubeconfig = cache() / "kind.kubeconfig"

    def prepare(self) -> None:
        _need_kubectl()

    def open(self, images: Images) -> Kube:
        self.close()
        self._kind(
            "create", "cluster", "--config", str(ROOT / "e2e/kind.yaml"), *self._access(), "--wait", "120s"
        )
        return Kube("kubectl", {"KUBECONFIG": str(self._kubeconfig)}, f"kind-{self._cluster}")

    def load(self, archive: Path) -> None:
        self._kind("load", "image-archive", str(archive))

    def kill(self, kube: Kube, pod: str) -> str:
        return force_delete(kube, pod)

    def explain(self) -> None:
        pass

    def close(self) -> None:
        self._kind("delete", "cluster", *self._access())

    def _access(self) -> list[str]:
        self._kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        return ["--kubeconfig", str(self._kubeconfig)]

    def _kind(self, *arguments: str) -> None:
        subprocess.run(["kind", *arguments, "--name", self._cluster], check=True, timeout=900)


class OwnNode:
    name = "a local node"
    is_new = True

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise Fault(
                "a local node needs root: name a cluster with E2E_CONTEXT, or install Docker and kind"
            )
        cache().mkdir(parents=True, exist_ok=True)
        self.programs = cache() / "bin"
        self.kubeconfig = cache() / "var/etc/admin.kubeconfig"
        self._lock: IO[str] = (cache() / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fault("another `make e2e` is running on this machine") from None

    def prepare(self) -> None:
        subprocess.run([ROOT / "scripts/setup.sh", *_NODE_PACKAGES], check=True, timeout=900)
        run_bounded([_NODE / "build.sh"], _BUILD_TIMEOUT_S, "building the node's programs")

    def open(self, images: Images) -> Kube:
        subprocess.run([_NODE / "up.sh", images.of_the_node(self.programs)], check=True, timeout=900)
        return Kube(str(self.programs / "kubectl"), {"KUBECONFIG": str(self.kubeconfig)})

    def load(self, archive: Path) -> None:
        subprocess.run([_NODE / "load.sh", archive], check=True, timeout=600)

    def kill(self, kube: Kube, pod: str) -> str:
        uid = kube.get("pod", pod)["metadata"]["uid"]
        # Ignore processes that have already ended with their parent.
        self._on_the_node(
            'for folder in $(cgroup_folders); do find "$folder" -path "*pod$1*" -name cgroup.procs -exec cat {} +; done'
            " | sort -u | xargs --no-run-if-empty kill -KILL 2>/dev/null || true",
            uid,
        )
        return "killed (-9)"

    def explain(self) -> None:
        for log in sorted((cache() / "var/log").glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-25:]
            say(f"--- {log.name}")
            print("\n".join(lines), flush=True)

    def close(self) -> None:
        subprocess.run([_NODE / "down.sh"], check=True, timeout=120)

    @staticmethod
    def _on_the_node(script: str, argument: str) -> None:
        """Run a line of shell with the node's settings."""
        source = f'set -euo pipefail; . "{_NODE}/settings.sh"; {script}'
        subprocess.run(["bash", "-c", source, "e2e", argument], check=True, timeout=600)


def force_delete(kube: Kube, pod: str) -> str:
    kube.run("delete", "pod", pod, "--force", "--grace-period=0")
    return "deleted by force"


def _need_kubectl() -> None:
    if shutil.which("kubectl") is None:
        raise Fault("kubectl is missing; install it, or use a local node (without E2E_CONTEXT and kind)")
