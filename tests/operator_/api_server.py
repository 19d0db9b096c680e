"""A real kube-apiserver with its etcd: no kubelet, no controllers, everything that the operator talks to.

The program comes from the node that `make e2e` builds (a multi-call binary), or from PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from ottla_cli.free_ports import free_ports

ADMIN = "admin-token"
OPERATOR = "operator-token"
LIMITED = "limited-token"
#: As its ServiceAccount in manifests/, so that it has the rights given there and no others.
OPERATOR_USER = "system:serviceaccount:ottla:ottla-operator"
#: As that of a release "limited" in the namespace "bank".
LIMITED_USER = "system:serviceaccount:bank:limited-ottla-operator"


def find_program() -> list[str] | None:
    """The command line of kube-apiserver, if there is one on this machine."""
    home = Path(os.environ.get("OTTLA_NODE_HOME", Path.home() / ".cache/ottla-node"))
    multi_call = Path(os.environ.get("OTTLA_HYPERKUBE", home / "bin/hyperkube"))
    if multi_call.exists():
        return [str(multi_call), "kube-apiserver"]
    alone = shutil.which("kube-apiserver")
    return None if alone is None else [alone]


class ApiServer:
    def __init__(self, program: list[str], folder: Path) -> None:
        self._folder = folder
        client, peer, self._port = free_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        self._processes = [
            self._start("etcd", self._etcd(client, peer)),
            self._start("apiserver", [*program, *self._flags(client)]),
        ]

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with open(self._folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def _etcd(self, client: int, peer: int) -> list[str]:
        return [
            "etcd", "--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", f"http://127.0.0.1:{client}",
            "--advertise-client-urls", f"http://127.0.0.1:{client}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer}",
        ]  # fmt: skip

    def _flags(self, etcd_port: int) -> list[str]:
        key = self._folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = self._folder / "tokens.csv"
        tokens.write_text(
            f'{ADMIN},admin,1,"system:masters"\n{OPERATOR},{OPERATOR_USER},2,"system:serviceaccounts"\n'
            f'{LIMITED},{LIMITED_USER},3,"system:serviceaccounts"\n'
        )
        flags = {
            "etcd-servers": f"http://127.0.0.1:{etcd_port}",
            "secure-port": self._port,
            "bind-address": "127.0.0.1",
            "cert-dir": self._folder / "certs",
            "service-cluster-ip-range": "10.0.0.0/24",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-signing-key-file": key,
            "service-account-key-file": key,
            "token-auth-file": tokens,
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "ServiceAccount",
        }
        return [f"--{name}={value}" for name, value in flags.items()]

    def wait_ready(self, timeout_s: float = 90) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if any(each.poll() is not None for each in self._processes):
                break
            try:
                self.request("GET", "/readyz", text=True)
                return
            except (OSError, ApiError):
                time.sleep(0.2)
        log = (self._folder / "apiserver.log").read_text(errors="replace")
        raise RuntimeError(f"kube-apiserver did not become ready:\n{log[-3000:]}")

    def stop(self) -> None:
        for each in reversed(self._processes):
            each.send_signal(signal.SIGTERM)
            try:
                each.wait(10)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait(10)

    def kubeconfig(self, token: str) -> Path:
        path = self._folder / f"{token}.kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # ------------------------------------------------------------------ as admin

    def request(
        self, verb: str, path: str, body: Any = None, *, text: bool = False, kind: str = "json"
    ) -> Any:
        """`kind` is of the patch: merge-patch+json, apply-patch+yaml, …"""
        made = urllib.request.Request(
            self.url + path,
            method=verb,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": f"application/{kind}"},
        )
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(made, timeout=10, context=context) as answer:
                content = answer.read()
        except urllib.error.HTTPError as failed:
            with failed:
                raise ApiError(failed.code, failed.read().decode(errors="replace")) from None
        return content.decode() if text else json.loads(content)

    def apply(
        self, document: dict[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Server-side apply, as `kubectl apply --server-side` does; with `dry_run` nothing is stored."""
        meta = document["metadata"]
        path = path_of(document, meta.get("namespace") or namespace)
        query = "?fieldManager=test&force=true" + ("&dryRun=All" if dry_run else "")
        found: dict[str, Any] = self.request("PATCH", path + query, document, kind="apply-patch+yaml")
        return found


class ApiError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def path_of(document: dict[str, Any], namespace: str) -> str:
    version, kind = document["apiVersion"], document["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    cluster_wide = kind in (
        "namespace",
        "node",
        "storageclass",
        "clusterrole",
        "clusterrolebinding",
        "customresourcedefinition",
    )
    scope = "" if cluster_wide else f"/namespaces/{namespace}"
    return f"{root}{scope}/{plural}/{document['metadata']['name']}"
