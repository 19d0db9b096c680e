"""The broker process: exit codes, sentences, signals."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla_broker.exit_codes import ExitCode
from ottla_cli.free_ports import free_ports
from ottla_cli.local_cluster import LocalCluster
from ottla_core import compiled
from ottla_core.version import version_of

pytestmark = pytest.mark.integration

Make = Callable[..., LocalCluster]


def _broker(*settings: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    flags = [part for pair in settings for part in ("--set", pair)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ottla_broker", *flags], stderr=subprocess.PIPE, stdin=stdin, text=True
    )


def _ending(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def _listeners() -> list[str]:
    return [
        f"{name}.listener=127.0.0.1:{port}"
        for name, port in zip(("kafka", "grpc", "internal", "http"), free_ports(4), strict=True)
    ]


def test_a_wrong_setting_is_one_sentence_and_quick() -> None:
    began = time.monotonic()
    code, said = _ending(_broker("num.partition=1"))
    assert code == ExitCode.BAD_CONFIG
    assert said == (
        "ottla-broker: There is no setting 'num.partition' (given as a flag); did you mean num.partitions?\n"
    )
    assert time.monotonic() - began < 5


def test_a_config_file_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ottla_broker", "--config", "/nowhere/ottla.toml"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.BAD_CONFIG
    assert "/nowhere/ottla.toml cannot be read" in done.stderr


@pytest.mark.parametrize("name", ["kafka", "grpc", "internal", "http"])
def test_a_taken_port_is_named_with_its_setting(name: str, tmp_path: Path) -> None:
    listeners = dict(pair.split("=") for pair in _listeners())
    port = int(listeners[f"{name}.listener"].split(":")[1])
    with socket.create_server(("127.0.0.1", port)):
        settings = [f"{key}={value}" for key, value in listeners.items()]
        code, said = _ending(_broker(*settings, f"log.dirs={tmp_path}/log"))
    assert code == ExitCode.PORT_TAKEN
    assert said == f"ottla-broker: Port {port} on 127.0.0.1 is taken; choose another with {name}.listener.\n"


def test_without_etcd_it_gives_up_with_a_sentence(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    code, said = _ending(
        _broker(
            *_listeners(), f"etcd.endpoints=127.0.0.1:{port}", "etcd.connect.timeout.ms=300",
            f"log.dirs={tmp_path}/log",
        )
    )  # fmt: skip
    assert code == ExitCode.NO_ETCD
    assert f"ottla-broker: etcd does not answer at 127.0.0.1:{port}; start it" in said


def test_it_starts_while_the_first_etcd_member_is_away(make_cluster: Make, tmp_path: Path) -> None:
    etcd, (dead,) = make_cluster().etcd_endpoint, free_ports(1)
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "ottla_broker", "--ready-file", str(ready),
            *(part for pair in (
                *_listeners(), f"etcd.endpoints=127.0.0.1:{dead},{etcd}", "cluster.name=other",
                f"log.dirs={tmp_path}/log",
            ) for part in ("--set", pair)),
        ],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 20
    while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, said = _ending(process)
    assert ready.exists(), said
    assert code == ExitCode.OK


def test_a_signal_while_it_waits_for_etcd_ends_it(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    process = _broker(*_listeners(), f"etcd.endpoints=127.0.0.1:{port}", f"log.dirs={tmp_path}/log")
    assert process.stderr is not None
    assert "waiting for etcd" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    code, said = _ending(process)
    assert code == ExitCode.OK
    assert "stopped" in said


def test_it_starts_tells_its_addresses_and_stops_cleanly(make_cluster: Make) -> None:
    cluster = make_cluster(settings={"log.format": "json"})
    broker = cluster.brokers[0]
    connection = http.client.HTTPConnection(broker.http, timeout=5)
    connection.request("GET", "/readyz")
    assert json.load(connection.getresponse()) == {"ready": True, "reasons": []}
    connection.close()
    assert cluster.stop_broker(0) == ExitCode.OK
    events = [json.loads(line) for line in Path(broker.child.log_path).read_text().splitlines()]
    names = [event["event"] for event in events]
    assert names.index("ready") < names.index("stopping") < names.index("stopped")
    ready = events[names.index("ready")]
    assert (ready["kafka"], ready["grpc"], ready["http"]) == (broker.kafka, broker.grpc, broker.http)
    assert (ready["version"], ready["code"]) == (version_of(), compiled.in_use())
    assert not [event for event in events if event["level"] in ("warning", "error")], events


def test_it_comes_back_after_a_stop_and_after_a_kill(make_cluster: Make) -> None:
    cluster = make_cluster()
    cluster.stop_broker(0)
    cluster.restart(0)
    cluster.kill(0)
    cluster.restart(0)
    assert cluster.dead == []


def test_a_log_folder_of_another_cluster_is_refused(make_cluster: Make, tmp_path: Path) -> None:
    first = make_cluster(str(tmp_path / "first"))
    folder = first.brokers[0].log_dir
    first.stop()
    second = make_cluster()
    code, said = _ending(
        _broker(*_listeners(), f"etcd.endpoints={second.etcd_endpoint}", "broker.id=0", f"log.dirs={folder}")
    )
    assert code in (ExitCode.BAD_LOG_DIR, ExitCode.LOST_HISTORY), said
    assert said.splitlines()[-1].startswith("ottla-broker: "), said


def test_it_ends_with_its_owner(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster()
    flags = [part for pair in _listeners() for part in ("--set", pair)]
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "ottla_broker", "--exit-with-parent", "--ready-file", str(ready), *flags,
            "--set", f"etcd.endpoints={cluster.etcd_endpoint}", "--set", "cluster.name=other",
            "--set", f"log.dirs={tmp_path}/log",
        ],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert json.loads(ready.read_text())["pid"] == process.pid
    code, said = _ending(process)  # closes its standard input
    assert code == ExitCode.OK
    assert "has exited" in said
    assert os.path.exists(tmp_path / "log")


def test_a_broker_without_the_secret_does_not_join_others(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster()
    own = (f"etcd.endpoints={cluster.etcd_endpoint}", f"log.dirs={tmp_path}/log", "broker.id=1")
    code, said = _ending(_broker(*_listeners(), *own))
    assert code == ExitCode.BAD_CONFIG
    assert said.splitlines()[-1] == (
        "ottla-broker: The cluster has other brokers (0), and this one does not know their secret: set "
        "cluster.secret.file to the file that they use."
    )
    short = tmp_path / "secret"
    short.write_text("short")
    code, said = _ending(_broker(*_listeners(), *own, f"cluster.secret.file={short}"))
    assert code == ExitCode.BAD_CONFIG
    assert "needs at least 16 characters" in said


def test_a_broker_that_is_alone_needs_no_secret(make_cluster: Make) -> None:
    cluster = make_cluster(settings={"cluster.secret.file": ""})
    log = "\n".join(cluster.brokers[0].child.log_lines(50))
    assert "no cluster secret" in log
    cluster.restart(0)  # It finds itself among the members, and nobody else.


def test_a_local_cluster_keeps_its_secret_for_itself(make_cluster: Make, tmp_path: Path) -> None:
    path = tmp_path / "data" / "cluster.secret"
    cluster = make_cluster(str(tmp_path / "data"))
    secret = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    cluster.stop()
    make_cluster(str(tmp_path / "data"))
    assert path.read_text() == secret
    logs = "".join(each.read_text(errors="replace") for each in (tmp_path / "data").glob("*.log"))
    assert secret.strip() not in logs


def _is_refused(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_stopping_broker_lingers_for_clients_to_move_and_to_be_refused(make_cluster: Make) -> None:
    """Where its address goes with it, a client must have no reason to connect again once that has happened."""
    cluster = make_cluster(brokers=2, settings={"shutdown.linger.ms": "1000", "log.format": "json"})
    broker = cluster.brokers[0]
    began = time.monotonic()
    os.kill(broker.pid, signal.SIGTERM)
    time.sleep(0.5)
    assert not _is_refused(broker.kafka), "leaderships are handed over, and clients are still answered"
    while not _is_refused(broker.kafka):
        assert time.monotonic() - began < 15
        time.sleep(0.02)
    refused_at = time.monotonic()
    assert refused_at - began > 0.9
    while broker.child.exit_code is None:
        assert _is_refused(broker.kafka) and _is_refused(broker.grpc)
        assert time.monotonic() - refused_at < 15
        time.sleep(0.02)
    assert time.monotonic() - refused_at > 0.9, "the address lives on while clients are refused"
    assert cluster.stop_broker(0) == ExitCode.OK
