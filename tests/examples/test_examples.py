"""`examples/`, the guide that shows them, and the README: each program runs as it is printed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from ottla_cli.free_ports import free_ports
from ottla_cli.local_cluster import LocalCluster
from ottla_client import TopicPartition
from ottla_client.sync import Admin, Consumer, Producer

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.integration


def run(program: Path | str, *arguments: str) -> str:
    start = [sys.executable, str(program)] if isinstance(program, Path) else [sys.executable, "-c", program]
    done = subprocess.run([*start, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


class Running:
    """An example that runs until it gets SIGTERM."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.lines: list[str] = []

    def wait_for(self, part: str) -> str:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append(line.rstrip())
            if part in line:
                return line.rstrip()
        raise AssertionError(f"ended without {part!r}: {self.lines}")

    def terminate(self) -> None:
        self._child.send_signal(signal.SIGTERM)
        self.wait_for("stopped")
        assert self._child.wait(20) == 0


@contextmanager
def running(program: str, *arguments: str) -> Iterator[Running]:
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            yield Running(child)
        finally:
            child.kill()


def values(cluster: LocalCluster, topic: str, count: int, **settings: str) -> list[bytes]:
    with Consumer(cluster.grpc_bootstrap, auto_offset_reset="earliest", **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)])
        found: list[bytes] = []
        while len(found) < count:
            found += [
                record.value for record in consumer.poll(timeout_ms=10_000) or pytest.fail("no records")
            ]
        return found


def topic_named(stem: str) -> str:
    return f"{stem}-{uuid4().hex[:8]}"


def test_blocking_script(local_cluster: LocalCluster) -> None:
    out = run(EXAMPLES / "blocking_script.py", local_cluster.grpc_bootstrap, topic_named("temperatures"))
    assert "room-0: 24 °C\nroom-1: 24 °C\nroom-2: 24 °C\n" in out


def test_typed_records(local_cluster: LocalCluster) -> None:
    out = run(EXAMPLES / "typed_records.py", local_cluster.grpc_bootstrap, topic_named("typed"))
    assert out == "0 ink\n1 paper\n"


def test_async_service(local_cluster: LocalCluster) -> None:
    topic, (port,) = topic_named("lines"), free_ports(1)
    with running(
        "async_service.py", local_cluster.grpc_bootstrap, "--port", str(port), "--topic", topic
    ) as service:
        service.wait_for("listening")
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"hello\nagain\n")
            answers = client.makefile()
            assert {answers.readline(), answers.readline()} == {"0:0\n", "0:1\n"}
        service.terminate()
    assert values(local_cluster, topic, 2) == [b"hello", b"again"]


def test_group_worker(local_cluster: LocalCluster) -> None:
    topic = topic_named("orders")
    with Producer(local_cluster.grpc_bootstrap) as producer:
        for value in (b'{"id": 1}', b"not JSON", b'{"id": 2}'):
            producer.send_and_wait(topic, value)
    with running("group_worker.py", local_cluster.grpc_bootstrap, topic, f"{topic}-g") as worker:
        worker.wait_for("assigned [0]")
        worker.wait_for("order 2")
        worker.terminate()
    assert values(local_cluster, f"{topic}.dead", 1) == [b"not JSON"]
    with Admin(local_cluster.grpc_bootstrap) as admin:
        assert admin.group_offsets(f"{topic}-g")[TopicPartition(topic, 0)].offset == 3
        assert admin.describe_groups([f"{topic}-g"])[0].members == ()


def test_transactions(local_cluster: LocalCluster) -> None:
    source, target = topic_named("orders"), topic_named("invoices")
    with Producer(local_cluster.grpc_bootstrap, value_serializer="json") as producer:
        for number in range(3):
            producer.send_and_wait(source, {"id": number, "price": 10})
    with running("transactions.py", local_cluster.grpc_bootstrap, source, target) as worker:
        worker.wait_for("committed")
        invoices = values(local_cluster, target, 3, isolation_level="read_committed")
        worker.terminate()
    assert [json.loads(invoice) for invoice in invoices] == [{"order": n, "total": 12.0} for n in range(3)]


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def test_python_of_the_readme_runs_when_pasted(local_cluster: LocalCluster) -> None:
    blocks = _blocks("README.md", "python")
    assert blocks
    for block in blocks:
        out = run(
            block.replace("127.0.0.1:9192", local_cluster.grpc_bootstrap).replace(
                "greetings", topic_named("g")
            )
        )
        assert "b'hello'" in out


def test_programs_of_the_guides_run_when_pasted(local_cluster: LocalCluster, tmp_path: Path) -> None:
    """Those that are not files of `examples/`, which have tests of their own."""
    (program,) = _blocks("docs/idempotent-processing.md", "python")
    topic = topic_named("items")
    with Producer(local_cluster.grpc_bootstrap, value_serializer="str") as producer:
        for item in ("ink", "paper", "ink"):
            producer.send_and_wait(topic, item)
    program = program.replace("127.0.0.1:9192", local_cluster.grpc_bootstrap).replace('"items"', f'"{topic}"')
    program = program.replace("totals.db", str(tmp_path / "totals.db")).replace(
        "timeout_ms=2000", "timeout_ms=500"
    )
    assert run(program) == run(program) == "ink 2\npaper 1\n", "the second run finds nothing new"
    files = {path.read_text() for path in EXAMPLES.glob("*.py")}
    settings, telemetry = [block for block in _blocks("docs/client.md", "python") if block not in files]
    run(settings)
    out = run(
        telemetry.replace("127.0.0.1:9192", local_cluster.grpc_bootstrap).replace(
            "greetings", topic_named("g")
        )
    )
    assert out == "b'hello'\n"


def test_commands_of_the_readme_run_when_pasted(local_cluster: LocalCluster) -> None:
    (commands,) = [
        block
        for block in re.findall(r"((?:^    \S.*\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE)
        if "ottla topics create" in block
    ]
    text = commands.replace("127.0.0.1:9092", local_cluster.kafka_bootstrap).replace(
        "greetings", topic_named("g")
    )
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", text],
        env={
            **os.environ,
            "OTTLA_BOOTSTRAP": local_cluster.grpc_bootstrap,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout and "3 partitions" in done.stdout, done.stdout
