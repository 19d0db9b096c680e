"""Counts lost registrations and controller changes during a measurement. [A]

Ottla: from etcd. A registration that ends with its lease, or is removed by another broker, comes back with a new create
revision, and so does the controller's key. Kafka: from what the active controller logs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import grpc
from aetcd import rpc
from aetcd.rpc.rpc_pb2_grpc import KVStub

_EVERY_S = 0.2
_TIMEOUT_S = 5.0
_ALL_CLUSTERS = b"/ottla/"

#: Lines of Kafka's controller at level INFO, see `KAFKA_LOGS_CHANGES`.
_FENCED = re.compile(r"[Ff]encing broker \d+")
_ELECTED = re.compile(r"[Bb]ecoming the active controller")
KAFKA_LOGS_CHANGES = ("-Dorg.slf4j.simpleLogger.log.org.apache.kafka.controller=info",)


class Changes:
    """Counts since the block began; to be read after it."""

    def __init__(self) -> None:
        self.expired = 0
        self.controllers = 0


class EtcdChanges(Changes):
    """`with EtcdChanges(endpoint) as changes: …`; looks five times a second."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._channel = grpc.insecure_channel(endpoint)
        #: Create revisions of the keys that were there at the last look.
        self._seen: dict[bytes, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> EtcdChanges:
        (key, *_), *_ = self._range(_ALL_CLUSTERS)
        #: Of this cluster, which is the only one of a local etcd.
        self._prefix = b"/".join(key.split(b"/")[:3]) + b"/"
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2 * _TIMEOUT_S)
        self._channel.close()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self._look()
            except grpc.RpcError:
                continue  # etcd is as busy as the machine; the next look sees what this one did not.

    def _look(self) -> None:
        brokers, controller = self._prefix + b"brokers/", self._prefix + b"controller"
        now = dict([*self._range(brokers), *self._range(controller)])
        for name, revision in self._seen.items():
            if now.get(name) != revision:  # Removed, or removed and made again since.
                if name == controller:
                    self.controllers += 1
                else:
                    self.expired += 1
        self._seen = now

    def _range(self, prefix: bytes) -> list[tuple[bytes, int]]:
        """Names and create revisions of all keys that begin like this."""
        request = rpc.RangeRequest(
            key=prefix, range_end=prefix[:-1] + bytes([prefix[-1] + 1]), keys_only=True, limit=1000
        )
        found = KVStub(self._channel).Range(request, timeout=_TIMEOUT_S).kvs
        return [(entry.key, entry.create_revision) for entry in found]


@contextmanager
def kafka_changes(logs: Iterable[Path]) -> Iterator[Changes]:
    """For servers that were started with `KAFKA_LOGS_CHANGES`."""
    files = [(path, path.stat().st_size) for path in logs]
    changes = Changes()
    yield changes
    for path, size in files:
        with path.open("rb") as file:
            file.seek(size)
            text = file.read().decode(errors="replace")
        changes.expired += len(_FENCED.findall(text))
        changes.controllers += len(_ELECTED.findall(text))
