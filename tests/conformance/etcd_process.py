"""A real etcd for tests: free ports, a folder of its own, stopped by its pid."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EtcdProcess:
    def __init__(self, folder: Path, *flags: str, scheme: str = "http") -> None:
        self.folder = folder
        self._flags = flags
        self._scheme = scheme
        self.endpoint = f"127.0.0.1:{free_port()}"
        self._peer = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        client = f"{self._scheme}://{self.endpoint}"
        command = [
            "etcd", "--name", "test", "--data-dir", str(self.folder / "data"), "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer,
            "--initial-cluster", f"test={self._peer}", *self._flags,
        ]  # fmt: skip
        with (self.folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        host, _, port = self.endpoint.partition(":")
        while time.monotonic() < deadline:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.02)
        raise RuntimeError(f"etcd did not start: {(self.folder / 'etcd.log').read_text()[-2000:]}")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a crash does; `start` may follow."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


@contextmanager
def running_etcd(folder: Path, *flags: str, scheme: str = "http") -> Iterator[EtcdProcess]:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    etcd = EtcdProcess(folder, *flags, scheme=scheme)
    etcd.start()
    try:
        yield etcd
    finally:
        etcd.kill()
