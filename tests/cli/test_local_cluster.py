"""A local cluster starts, tells its addresses, survives kills of its parts and leaves nothing behind.

With a stand-in for the broker (the broker itself has tests of its own) and a real etcd.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla_cli.child import Process, identity
from ottla_cli.cluster_state import ClusterFolder
from ottla_cli.embedded_etcd import EtcdProgram
from ottla_cli.failure import Failure
from ottla_cli.free_ports import free_ports, port_is_free
from ottla_cli.local_cluster import LocalCluster, Ports

pytestmark = pytest.mark.integration

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_broker.py")))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(str(tmp_path / "data"), broker_command=STAND_IN)
    made.start()
    yield made
    made.stop()


def _connects(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
        return True
    except OSError:
        return False


def _gone(pids: list[int], within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while any(identity(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _processes_mentioning(text: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(int(entry))
    return found


def test_everything_runs_and_is_written_down(cluster: LocalCluster) -> None:
    assert _connects(cluster.kafka_bootstrap)
    assert _connects(cluster.etcd_endpoint)
    running = cluster.folder.running()
    assert running is not None
    assert running.ready
    assert all(process.alive for process in running.processes)
    assert running.owner.pid == os.getpid()
    assert [broker.process.pid for broker in running.brokers] == [cluster.pids[0]]
    assert not cluster.dead


def test_a_stop_leaves_nothing(tmp_path: Path) -> None:
    made = LocalCluster(str(tmp_path / "data"), broker_command=STAND_IN)
    made.start()
    addresses = [made.kafka_bootstrap, made.etcd_endpoint]
    made.stop()
    assert _gone(_processes_mentioning(str(tmp_path)))
    assert not any(map(_connects, addresses))
    assert made.folder.running() is None
    assert not made.folder.is_locked
    made.stop()  # twice is fine


def test_a_temporary_folder_goes_with_its_cluster() -> None:
    with LocalCluster(broker_command=STAND_IN) as made:
        folder = made.data_dir
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)


def test_a_killed_broker_comes_back_on_its_ports(cluster: LocalCluster) -> None:
    before, address = cluster.pids[0], cluster.kafka_bootstrap
    cluster.kill(0)
    assert not _connects(address)
    assert [child.name for child in cluster.dead] == ["broker 0"]
    cluster.restart(0)
    assert cluster.pids[0] != before
    assert cluster.kafka_bootstrap == address
    assert _connects(address)
    assert cluster.dead == []


def test_etcd_keeps_its_ports_over_restarts(tmp_path: Path) -> None:
    endpoints = []
    for _ in range(2):
        with LocalCluster(str(tmp_path / "data"), broker_command=STAND_IN) as made:
            endpoints.append(made.etcd_endpoint)
    assert endpoints[0] == endpoints[1]


def test_etcd_can_be_started_again(cluster: LocalCluster) -> None:
    assert cluster.etcd is not None
    cluster.etcd.child.kill()
    assert [child.name for child in cluster.dead] == ["etcd"]
    cluster.restart_etcd()
    deadline = time.monotonic() + 10
    while not _connects(cluster.etcd_endpoint):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert cluster.dead == []


def test_nothing_outlives_a_killed_owner(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    script = (
        "import sys, time\nfrom ottla_cli.local_cluster import LocalCluster\n"
        f"LocalCluster({data!r}, broker_command={STAND_IN!r}).start()\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    running = ClusterFolder(data).running()
    assert running is not None
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert _gone([process.pid for process in running.processes])
    assert _gone(_processes_mentioning(data))
    # And the next owner is not disturbed by what the dead one wrote down.
    with LocalCluster(data, broker_command=STAND_IN) as made:
        assert _connects(made.kafka_bootstrap)


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    kafka, grpc, http = free_ports(3)
    with socket.create_server(("127.0.0.1", grpc)):
        made = LocalCluster(str(tmp_path / "data"), ports=Ports(kafka, grpc, http), broker_command=STAND_IN)
        with pytest.raises(Failure, match=rf"Port {grpc} .*broker 0, grpc.* is in use.*--grpc-port"):
            made.start()
    assert not (tmp_path / "data" / "etcd").exists()
    assert not made.folder.is_locked


def test_ports_that_meet_are_named_before_anything_starts(tmp_path: Path) -> None:
    while not all(map(port_is_free, range(first := free_ports(1)[0], first + 4))):
        pass
    made = LocalCluster(
        str(tmp_path / "data"), brokers=2, ports=Ports(first, first + 1, first + 3), broker_command=STAND_IN
    )
    with pytest.raises(Failure, match=rf"Port {first + 1} .* both broker 1 \(kafka\) and broker 0 \(grpc\)"):
        made.start()
    assert not made.folder.is_locked


def test_one_folder_has_one_owner(cluster: LocalCluster) -> None:
    second = LocalCluster(cluster.data_dir, broker_command=STAND_IN)
    with pytest.raises(Failure, match=rf"already runs in .* \(pid {os.getpid()}\).*ottla down --data"):
        second.start()
    assert _connects(cluster.kafka_bootstrap), "the first one must not notice"
    assert cluster.folder.running() is not None


def test_what_the_broker_says_is_what_the_user_reads(tmp_path: Path) -> None:
    made = LocalCluster(str(tmp_path / "d"), broker_command=STAND_IN, settings={"cluster.name": "refuses"})
    with pytest.raises(Failure) as failed:
        made.start()
    assert str(failed.value) == "Broker 0 did not start: The moon is in the wrong phase."
    assert _gone(_processes_mentioning(str(tmp_path)))


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ('{"level":"warn","msg":"hm"}\n{"level":"panic","msg":"no WAL","error":"no space left"}\ngoroutine 1',
         "etcd ended with code 2: no WAL: no space left. Its log is .*etcd.log."),
        ("exec format error", "etcd ended with code 2. The end of .*etcd.log:\nexec format error"),
    ],
)  # fmt: skip
def test_an_etcd_that_ends_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, told: str
) -> None:
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\ncat <<'end'\n{says}\nend\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr(
        "ottla_cli.local_cluster.find_etcd", lambda _say: EtcdProgram(str(program), (3, 5, 9))
    )
    made = LocalCluster(str(tmp_path / "data"), broker_command=STAND_IN)
    with pytest.raises(Failure, match=told):
        made.start()
    assert _gone(_processes_mentioning(str(tmp_path)))


def test_a_number_of_brokers_that_cannot_be_is_refused_with_a_sentence() -> None:
    with pytest.raises(Failure, match="1 to 99 brokers, not 0"):
        LocalCluster(brokers=0)


def test_a_process_of_another_identity_is_never_signalled() -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stale = Process(bystander.pid, "another boot/12345")
        assert not stale.alive
        assert not stale.send(signal.SIGKILL)
        assert bystander.poll() is None
        true = Process(bystander.pid, identity(bystander.pid) or "")
        assert true.alive
        assert true.send(signal.SIGKILL)
    finally:
        bystander.kill()
        bystander.wait()
    assert not true.alive


def test_free_ports_are_free_and_below_the_ephemeral_range() -> None:
    found = free_ports(5)
    assert len(set(found)) == 5
    assert all(port_is_free(port) and port < 32768 for port in found)
    with socket.create_server(("127.0.0.1", found[0])):
        assert not port_is_free(found[0])
