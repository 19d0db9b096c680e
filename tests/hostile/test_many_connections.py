"""More connections than a broker has descriptors for: they are refused, and it keeps its files, clients and pid."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = pytest.mark.integration

DESCRIPTORS = 600
#: To each port; together more than the broker may open, and less than this process may.
FLOOD = 350
PATIENCE_S = 20


def _ottla(*arguments: str) -> str:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    command = [str(Path(sys.executable).parent / "ottla"), *arguments]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=limit,
    ).stdout


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    ports = ("--kafka-port", "0", "--grpc-port", "0", "--http-port", "0")
    _ottla("up", "--data", str(tmp_path), "--detach", *ports)
    yield tmp_path
    _ottla("down", "--data", str(tmp_path))


def _broker(data: Path) -> dict[str, Any]:
    (broker,) = json.loads(_ottla("status", "--data", str(data), "--json"))["brokers"]
    return dict(broker)


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def _create(admin: AdminClient, topic: str) -> None:
    (created,) = admin.create_topics([NewTopic(topic, 1, 1, config={"segment.bytes": "1048576"})]).values()
    created.result(PATIENCE_S)


def _write(producer: Producer, topic: str, count: int) -> list[object]:
    """What became of so many records that each roll a segment or so."""
    outcomes: list[object] = []
    for _ in range(count):
        producer.produce(topic, bytes(400_000), on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return outcomes


def test_a_flood_of_connections_leaves_the_broker_its_files(data: Path) -> None:
    before = _broker(data)
    admin = AdminClient({"bootstrap.servers": before["kafka"]})
    producer = Producer({"bootstrap.servers": before["kafka"], "message.timeout.ms": PATIENCE_S * 1000})
    _create(admin, "early")
    assert _write(producer, "early", 1) == [None]
    with ExitStack() as flood:
        for address in (before["kafka"], before["grpc"]):
            for _ in range(FLOOD):
                flood.enter_context(_connected(address))
        assert _write(producer, "early", 20) == [None] * 20
        _create(admin, "late")
        assert _write(producer, "late", 3) == [None] * 3
    after = _broker(data)
    assert (after["pid"], after["ready"]) == (before["pid"], True)
