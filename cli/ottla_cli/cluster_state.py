"""The state files of a local cluster in its data folder: its processes and its ports. [A]

The owner process holds `lock` while it lives: a cluster runs if and only if `lock` is held. `running.json` names
the owner and its brokers; it may be stale after a crash, so each process is recorded with its
identity. `kept.json` stays after a stop: the ports of etcd, chosen once.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ottla_cli.child import Process, identity
from ottla_cli.failure import Failure


@dataclass(frozen=True, slots=True)
class BrokerState:
    id: int
    process: Process
    kafka: str
    grpc: str
    http: str


@dataclass(frozen=True, slots=True)
class Running:
    owner: Process
    ready: bool = False
    #: The folder was created for this run and is removed with it.
    temporary: bool = False
    etcd: Process | None = None
    etcd_endpoint: str = ""
    brokers: list[BrokerState] = field(default_factory=list)

    @property
    def processes(self) -> list[Process]:
        """All processes, the owner first."""
        return [self.owner, *(broker.process for broker in self.brokers), *([self.etcd] if self.etcd else [])]


def process_of(pid: int) -> Process:
    return Process(pid, identity(pid) or "gone")


class ClusterFolder:
    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._lock_fd: int | None = None

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def lock(self) -> None:
        """Become the owner; a Failure names the present owner."""
        try:
            os.makedirs(self.path, exist_ok=True)
            fd = os.open(self.file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as failed:
            raise Failure(f"The data folder {self.path} cannot be used: {failed.strerror}.") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            running = self.running()
            who = f" (pid {running.owner.pid})" if running else ""
            raise Failure(
                f"A local cluster already runs in {self.path}{who}. Stop it with: ottla down --data {self.path}"
            ) from None
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    @property
    def holds_lock(self) -> bool:
        return self._lock_fd is not None

    @property
    def is_locked(self) -> bool:
        """Whether a process owns the cluster; it may be this one."""
        try:
            fd = os.open(self.file("lock"), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(fd)

    def running(self) -> Running | None:
        found = self._read("running.json")
        if found is None:
            return None
        try:
            brokers = [
                BrokerState(**{**row, "process": Process(**row["process"])}) for row in found.pop("brokers")
            ]
            etcd = found.pop("etcd")
            owner = Process(**found.pop("owner"))
            return Running(owner=owner, etcd=Process(**etcd) if etcd else None, brokers=brokers, **found)
        except (KeyError, TypeError):
            raise Failure(f"{self.file('running.json')} is not a state file of this version.") from None

    def write_running(self, running: Running) -> None:
        self._write("running.json", asdict(running))

    def clear_running(self) -> None:
        with suppress(FileNotFoundError):
            os.remove(self.file("running.json"))

    def kept(self) -> dict[str, Any]:
        return self._read("kept.json") or {}

    def keep(self, values: dict[str, Any]) -> None:
        self._write("kept.json", values)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with open(self.file(name), encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return None
        except ValueError:
            raise Failure(f"{self.file(name)} is damaged; remove it if no cluster runs there.") from None
        return found if isinstance(found, dict) else None

    def _write(self, name: str, value: dict[str, Any]) -> None:
        scratch = self.file(f"{name}.new")
        try:
            with open(scratch, "w", encoding="utf-8") as file:
                json.dump(value, file, indent=2)
                file.write("\n")
            os.replace(scratch, self.file(name))
        except OSError as failed:
            raise Failure(f"The data folder {self.path} cannot be used: {failed.strerror}.") from None
