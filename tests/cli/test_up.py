"""`ottla up`, `status` and `down` as a person calls them, with a real broker."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla_cli.child import identity
from ottla_cli.free_ports import free_ports, port_is_free

pytestmark = pytest.mark.integration

OTTLA = (sys.executable, "-P", "-m", "ottla_cli")
Ottla = Callable[..., "subprocess.CompletedProcess[str]"]


def _run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*OTTLA, *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def _ports() -> list[str]:
    kafka, grpc, http = map(str, free_ports(3))
    return ["--kafka-port", kafka, "--grpc-port", grpc, "--http-port", http]


def _status(data: Path) -> dict[str, Any]:
    found = json.loads(_run("status", "--data", str(data), "--json", check=False).stdout)
    assert isinstance(found, dict)
    return found


def _until(condition: Callable[[], bool], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    _run("down", "--data", str(tmp_path / "data"))


def test_up_in_the_background_status_and_down(data: Path) -> None:
    ports = _ports()
    said = _run("up", "--detach", "--data", str(data), *ports).stderr
    assert "Ottla is up" in said
    assert f"ottla down --data {data}" in said.replace("\n", "")
    status = _status(data)
    assert status["running"]
    (broker,) = status["brokers"]
    assert broker["id"] == 0
    assert broker["kafka"] == f"127.0.0.1:{ports[1]}"
    assert (broker["alive"], broker["ready"], broker["reasons"]) == (True, True, [])
    connection = http.client.HTTPConnection(broker["http"], timeout=5)
    connection.request("GET", "/metrics")
    assert b"ottla_broker_info" in connection.getresponse().read()
    connection.close()
    settings = json.loads(_run("configs", "describe", "--broker", "0", "-b", broker["grpc"], "--json").stdout)
    values = {entry["name"]: entry["value"] for entry in settings}
    assert values["group.initial.rebalance.delay.ms"] == "0", "one consumer by hand need not wait for others"

    again = _run("up", "--data", str(data), *_ports(), check=False)
    assert again.returncode == 1
    assert f"already runs in {data} (pid {status['pid']})" in again.stderr

    _run("down", "--data", str(data))
    assert not any(identity(pid) for pid in (status["pid"], status["etcd"]["pid"], broker["pid"]))
    assert _status(data) == {"data": str(data), "running": False, "brokers": []}
    assert _run("status", "--data", str(data), check=False).returncode == 1
    assert "No cluster runs" in _run("down", "--data", str(data)).stderr


def test_ctrl_c_stops_everything_and_a_temporary_folder_goes(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    up = subprocess.Popen(
        [*OTTLA, "up", *_ports()], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert up.stderr is not None
    said = ""
    while "Ctrl-C stops everything" not in said:
        line = up.stderr.readline()
        assert line, said
        said += line
    (folder,) = tmp_path.iterdir()
    # As a terminal does it: to the whole group at once.
    os.killpg(up.pid, signal.SIGINT)
    said += up.stderr.read()
    up.stderr.close()
    assert up.wait(30) == 0
    assert "no process is left running" in said
    assert not folder.exists()
    assert "temporary" in said


def test_ctrl_c_before_it_is_ready_leaves_nothing_in_the_background(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*OTTLA, "up", "--detach", *_ports()], stderr=subprocess.PIPE, text=True, env=environment
    ) as up:
        _until(lambda: any(tmp_path.glob("ottla-*/up.log")))
        up.send_signal(signal.SIGINT)
        assert up.stderr is not None
        said = up.stderr.read()
        assert up.wait(60) == 130, said
    assert "no process is left running" in said
    _until(lambda: list(tmp_path.iterdir()) == [])


def test_a_crashed_broker_is_started_again(data: Path) -> None:
    _run("up", "--detach", "--data", str(data), *_ports())
    before = _status(data)["brokers"][0]["pid"]
    os.kill(before, signal.SIGKILL)
    _until(lambda: (row := _status(data)["brokers"][0])["pid"] != before and row["ready"])
    assert "broker 0 ended with code -9" in (data / "up.log").read_text()


def test_a_taken_port_is_named(data: Path) -> None:
    ports = _ports()
    with socket.create_server(("127.0.0.1", int(ports[1]))):
        for extra in ([], ["--detach"]):
            done = _run("up", "--data", str(data), *ports, *extra, check=False)
            assert done.returncode == 1
            assert f"Port {ports[1]} on 127.0.0.1 (broker 0, kafka) is in use" in done.stderr
    assert not _status(data)["running"]
    for wrong, sentence in (
        (["--kafka-port", "70000"], "--kafka-port"),
        (["--kafka-port", "65535", "--brokers", "2"], "Port 65536 for broker 1 is out of range"),
    ):
        done = _run("up", "--data", str(data), *ports[2:], *wrong, check=False)
        assert sentence in done.stderr and "Traceback" not in done.stderr


def test_a_wrong_setting_is_reported_in_the_brokers_words(data: Path) -> None:
    done = _run("up", "--data", str(data), *_ports(), "--set", "num.partition=3", check=False)
    assert done.returncode == 1
    assert "did you mean num.partitions?" in done.stderr
    assert not _status(data)["running"]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for extra in ([], ["--detach"]):
        done = _run("up", "--data", str(tmp_path / "file" / "data"), *extra, check=False)
        assert done.returncode == 1
        assert (
            done.stderr == f"ottla: The data folder {tmp_path}/file/data cannot be used: Not a directory.\n"
        )


def test_a_background_start_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = _run("up", "--detach", *_ports(), "--set", "num.partition=3", check=False)
    assert done.returncode == 1
    assert "did you mean num.partitions?" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_three_brokers_are_one_cluster(data: Path) -> None:
    kafka, grpc, http_port = _three_in_a_row(), _three_in_a_row(), _three_in_a_row()
    ports = ["--kafka-port", str(kafka), "--grpc-port", str(grpc), "--http-port", str(http_port)]
    _run("up", "--brokers", "3", "--detach", "--data", str(data), *ports)
    status = _status(data)
    assert [(b["id"], b["kafka"], b["ready"]) for b in status["brokers"]] == [
        (i, f"127.0.0.1:{kafka + i}", True) for i in range(3)
    ]
    # Asked of whom is not the controller, too: each answers as if it were.
    for i in range(3):
        _run("topics", "create", f"t{i}", "-p", "3", "-r", "3", "-b", f"127.0.0.1:{grpc + i}")
    found = json.loads(_run("cluster", "status", "-b", f"127.0.0.1:{grpc}", "--json").stdout)
    assert (found["topics"], found["partitions"]) == (3, 9)
    assert (found["offline_partitions"], found["under_replicated_partitions"]) == (0, 0)
    assert [(b["id"], b["leaders"], b["in_sync"]) for b in found["brokers"]] == [(i, 3, 9) for i in range(3)]
    assert sum(b["controller"] for b in found["brokers"]) == 1
    assert "under-replicated" in _run("cluster", "status", "-b", f"127.0.0.1:{grpc}").stdout
    assert _run("up", "--brokers", "0", check=False).returncode == 2


def _three_in_a_row() -> int:
    while True:
        (first,) = free_ports(1)
        if all(port_is_free(first + i) for i in range(3)):
            return first
