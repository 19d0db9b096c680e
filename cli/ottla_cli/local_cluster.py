"""A cluster on this machine: one etcd and its brokers; a stop leaves no process behind. [A]

The Python API of `ottla up`, for tests and benchmarks:

    with LocalCluster() as cluster:                 # free ports, a temporary folder
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.kafka_bootstrap})
        cluster.kill(0)                             # kill -9
        cluster.restart(0)                          # same ports, same data

    with LocalCluster(brokers=3) as cluster: …      # broker 0, 1 and 2

Blocking on purpose. Nothing is restarted automatically: `dead` lists the processes that exited, and `up.py` decides.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from ottla_cli.child import Child, wait_for_file
from ottla_cli.cluster_secret_file import keep_secret
from ottla_cli.cluster_state import BrokerState, ClusterFolder, Running, process_of
from ottla_cli.embedded_etcd import EmbeddedEtcd, EtcdProgram, find_etcd
from ottla_cli.failure import Failure
from ottla_cli.free_ports import check_port, free_ports, port_is_free

#: Each broker is a process of some 60 MB with four ports.
BROKERS_MAX = 99
#: A healthy broker starts in under a second; with ten thousand partitions after a crash it takes longer.
START_TIMEOUT_S = 60.0
#: A user who starts one consumer by hand does not start more within three seconds, so do not wait for them.
QUICK_GROUPS = {"group.initial.rebalance.delay.ms": "0"}
#: More than shutdown.timeout.ms, the broker's own deadline for a graceful stop.
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of broker 0; broker i has each of them plus i."""

    kafka: int = 9092
    grpc: int = 9192
    http: int = 9292


class LocalBroker:
    """One broker process of the cluster. Addresses are those that the broker reported."""

    def __init__(self, broker_id: int, ports: tuple[int, int, int, int], folder: ClusterFolder) -> None:
        self.id = broker_id
        self.kafka, self.grpc, self.http, self.internal = (f"127.0.0.1:{port}" for port in ports)
        self.log_dir = folder.file(f"broker-{broker_id}")
        self._ready_file = folder.file(f"broker-{broker_id}.ready")
        self.child = Child(f"broker {broker_id}", folder.file(f"broker-{broker_id}.log"))

    @property
    def pid(self) -> int:
        return self.child.pid

    def spawn(self, command: Sequence[str], settings: Mapping[str, str]) -> None:
        if os.path.exists(self._ready_file):
            os.remove(self._ready_file)
        own = {
            "broker.id": str(self.id),
            "log.dirs": self.log_dir,
            "kafka.listener": self.kafka,
            "grpc.listener": self.grpc,
            "http.listener": self.http,
            "internal.listener": self.internal,
        }
        flags = [part for name, value in {**own, **settings}.items() for part in ("--set", f"{name}={value}")]
        self.child.start(
            [*command, "--exit-with-parent", "--ready-file", self._ready_file, *flags], watches_stdin=True
        )

    def wait_ready(self, deadline: float, give_up: Callable[[], bool]) -> None:
        ready = wait_for_file(self._ready_file, self.child, deadline, give_up)
        if ready is not None:
            facts = json.loads(ready)
            self.kafka, self.grpc, self.http = facts["kafka"], facts["grpc"], facts["http"]
            return
        if give_up():
            raise Failure(f"Stopped before broker {self.id} was ready.", exit_code=130)
        lines = self.child.log_lines(40)
        sentences = [line for line in lines if line.startswith("ottla-broker: ")]
        code = self.child.exit_code
        if sentences and code != 1:  # 1 is a bug: then the traceback says more
            raise Failure(f"Broker {self.id} did not start: {sentences[-1].removeprefix('ottla-broker: ')}")
        what = "is not ready yet" if code is None else f"ended with code {code}"
        raise Failure("\n".join((f"Broker {self.id} {what}. The end of {self.child.log_path}:", *lines)))


class LocalCluster:
    def __init__(
        self,
        data_dir: str | None = None,
        *,
        brokers: int = 1,
        ports: Ports | None = None,
        settings: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
        config_file: str | None = None,
        temporary: bool | None = None,
        broker_command: Sequence[str] = (sys.executable, "-P", "-m", "ottla_broker"),
        say: Callable[[str], None] = lambda sentence: None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Without `data_dir`: a temporary folder, removed with the cluster. Without `ports`: free ports.

        `settings` are broker settings by name, for every broker; broker n gets the n-th of `racks`. Every wait polls
        `give_up`, and ends when it returns True.
        """
        if not 1 <= brokers <= BROKERS_MAX:
            raise Failure(f"A local cluster has 1 to {BROKERS_MAX} brokers, not {brokers}.", exit_code=2)
        self._count = brokers
        self._ports = ports
        self._settings = dict(settings or {})
        self._racks = tuple(racks)
        self._command = [*broker_command, *(("--config", config_file) if config_file else ())]
        self._temporary = data_dir is None if temporary is None else temporary
        self._say = say
        self._give_up = give_up
        self.folder = ClusterFolder(data_dir or tempfile.mkdtemp(prefix="ottla-"))
        self.brokers: dict[int, LocalBroker] = {}
        self.etcd: EmbeddedEtcd | None = None
        self._program: EtcdProgram | None = None

    # ------------------------------------------------------------------ start and stop

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start all processes and wait until they are ready. A Failure leaves no process running."""
        deadline = time.monotonic() + timeout_s
        self.begin()
        self.wait_ready(deadline)

    def begin(self) -> None:
        """Start all processes without waiting: brokers load their code while etcd elects itself."""
        try:
            self._take_folder()
            ports = self._choose_ports()
            self._start_etcd()
            self.brokers = {
                number: LocalBroker(number, ports[number], self.folder) for number in range(self._count)
            }
            for broker in self.brokers.values():
                broker.spawn(self._command, self._broker_settings(broker.id))
            self._write_state(ready=False)
        except BaseException:
            self.stop()
            raise

    def begin_etcd(self) -> None:
        """Start only the etcd of a stopped cluster, to repair its metadata."""
        try:
            self._take_folder()
            self._start_etcd()
            self._write_state(ready=False)
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, deadline: float) -> None:
        """Wait until all brokers are ready, or `deadline` (monotonic); a Failure stops all processes."""
        try:
            for broker in self.brokers.values():
                broker.wait_ready(deadline, self._should_give_up)
            self._write_state(ready=True)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop brokers, then etcd; remove a temporary folder. May be called if nothing runs."""
        for broker in self.brokers.values():
            broker.child.ask_to_stop()
        for broker in self.brokers.values():
            if not broker.child.stop(STOP_TIMEOUT_S):
                self._say(f"Broker {broker.id} did not stop in {STOP_TIMEOUT_S:.0f} s and was killed.")
        if self.etcd is not None:
            self.etcd.child.stop(10.0)
        self.brokers, self.etcd = {}, None
        if self.folder.holds_lock:
            self.folder.clear_running()
            if self._temporary:
                shutil.rmtree(self.folder.path, ignore_errors=True)
        self.folder.unlock()

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ one process

    def kill(self, broker_id: int) -> None:
        """kill -9."""
        self.brokers[broker_id].child.kill()

    def stop_broker(self, broker_id: int) -> int | None:
        """Stop a broker gracefully; returns its exit code."""
        child = self.brokers[broker_id].child
        child.stop(STOP_TIMEOUT_S)
        return child.exit_code

    def restart(self, broker_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start it again on the same ports and data; stops it first if it runs."""
        broker = self.brokers[broker_id]
        if broker.child.running:
            broker.child.stop(STOP_TIMEOUT_S)
        broker.spawn(self._command, self._broker_settings(broker.id))
        broker.wait_ready(time.monotonic() + timeout_s, self._give_up)
        self._write_state(ready=True)

    def restart_etcd(self) -> None:
        if self.etcd is None or self._program is None:
            raise Failure("The cluster was not started.")
        self.etcd.child.stop(10.0)
        self.etcd.start(self._program)
        self._write_state(ready=True)

    @property
    def dead(self) -> list[Child]:
        """Processes that exited without being stopped."""
        children = [*([self.etcd.child] if self.etcd else []), *(b.child for b in self.brokers.values())]
        return [child for child in children if child.exit_code is not None]

    # ------------------------------------------------------------------ addresses and state

    @property
    def data_dir(self) -> str:
        return self.folder.path

    @property
    def kafka_bootstrap(self) -> str:
        return ",".join(broker.kafka for broker in self.brokers.values())

    @property
    def grpc_bootstrap(self) -> str:
        return ",".join(broker.grpc for broker in self.brokers.values())

    @property
    def etcd_endpoint(self) -> str:
        return self.etcd.endpoint if self.etcd else ""

    @property
    def etcd_name(self) -> str:
        return str(self._program) if self._program else "etcd"

    @property
    def pids(self) -> dict[int, int]:
        return {broker.id: broker.pid for broker in self.brokers.values()}

    @property
    def temporary(self) -> bool:
        return self._temporary

    # ------------------------------------------------------------------ inside

    def _take_folder(self) -> None:
        self.folder.lock()
        self._end_leftovers()

    def _start_etcd(self) -> None:
        self._program = find_etcd(self._say)
        client, peer = self._etcd_ports()
        self.etcd = EmbeddedEtcd(self.folder.path, client_port=client, peer_port=peer)
        self.etcd.start(self._program)

    def _should_give_up(self) -> bool:
        """Whether to stop waiting for a broker; Failure if etcd has exited."""
        if self.etcd is not None and self.etcd.child.exit_code is not None:
            raise Failure(self.etcd.why_it_ended())
        return self._give_up()

    def _end_leftovers(self) -> None:
        """Wait for children of a killed owner to exit, before their ports are used again."""
        left = self.folder.running()
        for process in left.processes[1:] if left else []:
            process.send(signal.SIGTERM)
        for process in left.processes[1:] if left else []:
            if not process.wait(STOP_TIMEOUT_S):
                process.send(signal.SIGKILL)

    def _broker_settings(self, broker_id: int) -> dict[str, str]:
        rack = {"broker.rack": self._racks[broker_id]} if broker_id < len(self._racks) else {}
        return {
            **rack,
            "etcd.endpoints": self.etcd_endpoint,
            "cluster.secret.file": keep_secret(self.folder.file("cluster.secret")),
            **self._settings,
        }

    def _choose_ports(self) -> list[tuple[int, int, int, int]]:
        """Kafka, gRPC, HTTP and internal port of each broker. The internal one is any free port."""
        if self._ports is None:
            found = free_ports(4 * self._count)
            return [(found[i], found[i + 1], found[i + 2], found[i + 3]) for i in range(0, len(found), 4)]
        first = self._ports
        chosen: list[tuple[int, int, int]] = []
        given: dict[int, str] = {}
        for number in range(self._count):
            own = (("kafka", first.kafka), ("grpc", first.grpc), ("http", first.http))
            for name, port in own:
                check_port(port + number if port else 0, number, name, given)
            kafka, grpc, http = ((port + number if port else free_ports(1)[0]) for _, port in own)
            chosen.append((kafka, grpc, http))
        taken = {port for ports in chosen for port in ports}
        others = [port for port in free_ports(self._count + len(taken)) if port not in taken]
        return [(*ports, internal) for ports, internal in zip(chosen, others, strict=False)]

    def _etcd_ports(self) -> tuple[int, int]:
        """The ports of the last run, unless another process uses them now."""
        kept = self.folder.kept()
        ports = [kept.get("etcd_client_port"), kept.get("etcd_peer_port")]
        if not all(isinstance(port, int) and port_is_free(port) for port in ports):
            ports = list(free_ports(2))
            self.folder.keep({**kept, "etcd_client_port": ports[0], "etcd_peer_port": ports[1]})
        client, peer = (int(port or 0) for port in ports)
        return client, peer

    def _write_state(self, *, ready: bool) -> None:
        rows = [BrokerState(b.id, process_of(b.pid), b.kafka, b.grpc, b.http) for b in self.brokers.values()]
        base = Running(owner=process_of(os.getpid()), ready=ready, temporary=self._temporary, brokers=rows)
        if self.etcd is not None:
            base = replace(base, etcd=process_of(self.etcd.child.pid), etcd_endpoint=self.etcd.endpoint)
        self.folder.write_running(base)
