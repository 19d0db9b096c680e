"""The broker that stock clients are let loose on: Ottla, or Apache Kafka to check the tests themselves.

`OTTLA_INTEROP_TARGET=kafka` runs every test in this folder against Apache Kafka. What a test demands must
hold there too, or it is not Kafka's behaviour that it demands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ottla_bench.kafka_server import KafkaServer
from ottla_core.records.batch import BatchHeader, verify, whole_batches

START_TIMEOUT_S = 60


@dataclass(frozen=True)
class Target:
    kind: str  # "ottla" or "kafka"
    bootstrap: str
    data: Path
    #: The native protocol's address; Apache Kafka has none.
    grpc: str | None = None

    @property
    def is_ottla(self) -> bool:
        return self.kind == "ottla"

    def partition_folder(self, topic: str, partition: int = 0) -> Path:
        """Where the broker keeps a partition: `<log dir>/<topic>-<partition>`, somewhere under its data."""
        (folder,) = self.data.rglob(f"{topic}-{partition}")
        return folder

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """Its segment files; none before the first record, for the folder may come with it."""
        return sorted(self.data.rglob(f"{topic}-{partition}/*.log"))

    def batches(self, topic: str, partition: int = 0) -> list[BatchHeader]:
        """Every batch header in the broker's own segment files, each CRC checked on the way."""
        headers = []
        for segment in self.segments(topic, partition):
            content = segment.read_bytes()
            for position, header in whole_batches(content):
                assert verify(content, position, header), f"{segment} at {position}: bad CRC"
                headers.append(header)
        return headers


@contextmanager
def running_target(folder: Path | None = None) -> Iterator[Target]:
    """A broker for as long as the block lasts. Its data goes with it, unless a folder is given."""
    kind = os.environ.get("OTTLA_INTEROP_TARGET", "ottla")
    if kind == "kafka":
        with KafkaServer(None if folder is None else str(folder)) as kafka:
            yield Target("kafka", kafka.bootstrap, kafka.data_folder)
    elif kind == "ottla":
        with (
            tempfile.TemporaryDirectory(prefix="ottla-interop-") as own,
            _ottla(folder or Path(own)) as target,
        ):
            yield target
    else:
        raise ValueError(f"OTTLA_INTEROP_TARGET is {kind!r}; it may be 'ottla' or 'kafka'.")


@contextmanager
def _ottla(folder: Path) -> Iterator[Target]:
    """`ottla up --detach` on free ports, as a user would."""
    data = ("--data", str(folder))
    try:
        _ottla_command("up", *data, "--detach", "--kafka-port", "0", "--grpc-port", "0", "--http-port", "0")
        (broker,) = json.loads(_ottla_command("status", *data, "--json"))["brokers"]
        assert broker["ready"], broker
        yield Target("ottla", broker["kafka"], folder, grpc=broker["grpc"])
    finally:
        _ottla_command("down", *data)


def _ottla_command(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "ottla"), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        timeout=START_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        said = done.stdout + done.stderr
        raise RuntimeError(f"`{' '.join(command)}` ended with {done.returncode}:\n{said}")
    return done.stdout
