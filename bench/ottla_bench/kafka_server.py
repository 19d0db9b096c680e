"""Apache Kafka servers in KRaft mode on free ports: one for as long as a `with` block lasts, or several. [A]

The benchmark's other side, and the check of the interop tests: what a test demands of Ottla must hold for
Kafka too. Each server is broker and controller in one; `seats` places several of them in one cluster.
"""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ottla_bench.kafka_jars import KAFKA_SERVER, KAFKA_STORAGE, java_command, run_tool
from ottla_cli.free_ports import free_ports

#: What Kafka's own start script passes.
_SERVER_JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
#: Metadata v1 for no topics: length, key 3, version 1, correlation id 1, no client id, an empty array.
_METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0)
_HOST = "127.0.0.1"
_POLL_S = 0.01
_STOP_GRACE_S = 20.0


class Seat(NamedTuple):
    """A server's place in its cluster."""

    node_id: int
    port: int
    controller_port: int
    #: All servers of the cluster, as `controller.quorum.voters` names them.
    voters: str
    cluster_id: str


def seats(count: int) -> list[Seat]:
    """Places for a cluster of this many servers, on free ports."""
    ports = free_ports(2 * count)
    voters = ",".join(f"{node}@{_HOST}:{port}" for node, port in enumerate(ports[count:], 1))
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return [Seat(i + 1, ports[i], ports[count + i], voters, cluster_id) for i in range(count)]


class KafkaServer:
    """`with KafkaServer() as kafka: kafka.bootstrap`. Its folder goes when it stops, unless one was given."""

    def __init__(
        self,
        folder: str | None = None,
        *,
        seat: Seat | None = None,
        overrides: dict[str, str] | None = None,
        jvm_options: tuple[str, ...] = (),
        start_timeout_s: float = 60.0,
    ) -> None:
        """Alone, unless it has a seat in a cluster."""
        self._own_folder = None if folder else tempfile.TemporaryDirectory(prefix="kafka-")
        self.folder = Path(self._own_folder.name if self._own_folder else folder or ".")
        self.overrides = overrides or {}
        self._jvm_options = (*_SERVER_JVM_OPTIONS, *jvm_options)
        self.start_timeout_s = start_timeout_s
        self.host = _HOST
        self.port = 0
        self._seat = seat
        #: From exec to the first Metadata answer that names a broker.
        self.started_in_s = 0.0
        self._began = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("Kafka is not running.")
        return self._process.pid

    def __enter__(self) -> KafkaServer:
        try:
            self.format()
            self.start()
        except BaseException:
            self.stop()
            self._remove_folder()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._remove_folder()

    def format(self) -> None:
        """Write the configuration and the storage's meta.properties."""
        seat = self._seat or seats(1)[0]
        self.port = seat.port
        alone = {
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(seat.node_id),
            "listeners": f"PLAINTEXT://{_HOST}:{seat.port},CONTROLLER://{_HOST}:{seat.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{_HOST}:{seat.port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": seat.voters,
            "log.dirs": str(self.data_folder),
            **({} if self._seat else alone),
            **self.overrides,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        self._properties_file.write_text(text, encoding="utf-8")
        # An id that starts with a dash would be taken for an option.
        done = run_tool(
            KAFKA_STORAGE,
            "format",
            f"--cluster-id={seat.cluster_id}",
            "-c",
            str(self._properties_file),
            timeout_s=self.start_timeout_s,
        )
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's storage tool failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        command = java_command(KAFKA_SERVER, str(self._properties_file), jvm_options=self._jvm_options)
        self._began = time.monotonic()
        with open(self.log_file, "ab") as log:
            # A session of its own, as Ottla's brokers have: Linux shares the CPU between sessions first.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait_ready(self) -> None:
        while not answers_metadata(self.host, self.port):
            waited_s = time.monotonic() - self._began
            if self._process is None or self._process.poll() is not None or waited_s > self.start_timeout_s:
                tail = self.log_file.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"Kafka did not start ({waited_s:.1f} s):\n{tail}")
            time.sleep(_POLL_S)
        self.started_in_s = time.monotonic() - self._began

    def kill(self) -> None:
        """kill -9."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_STOP_GRACE_S)

    def stop(self) -> None:
        """Ask, wait, insist. Stopping what is stopped is fine."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_GRACE_S)

    @property
    def _properties_file(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log_file(self) -> Path:
        return self.folder / "server.log"

    def _remove_folder(self) -> None:
        if self._own_folder is not None:
            self._own_folder.cleanup()


def answers_metadata(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether a Kafka-speaking broker answers here and names at least one broker."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(_METADATA_REQUEST)
            answer = connection.recv(12, socket.MSG_WAITALL)
    except OSError:
        return False
    # Length, correlation id, number of brokers.
    return len(answer) == 12 and struct.unpack(">iii", answer)[2] > 0
