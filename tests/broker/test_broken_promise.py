"""What ends a broker by itself: a broken promise inside a request handler, or the loss of its last disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from kio.schema.list_offsets.v1 import request as list_offsets
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i64

from broker.broken_broker import PROMISE
from broker.edge.kafka_peer import Peer
from ottla_broker.exit_codes import ExitCode
from ottla_broker.log.dir_files import CLEAN_STOP
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc
from ottla_core.records.codec import Record, build_batch

pytestmark = pytest.mark.integration

_HERE = Path(__file__).parent


class Doomed:
    def __init__(self, program: str, cluster: LocalCluster, folder: Path) -> None:
        self.log_dir = folder / "log"
        ready = folder / "ready"
        settings = {
            **{f"{edge}.listener": "127.0.0.1:0" for edge in ("kafka", "grpc", "internal", "http")},
            "etcd.endpoints": cluster.etcd_endpoint,
            "cluster.name": folder.name,
            "log.dirs": str(self.log_dir),
            "log.format": "json",
        }
        flags = [part for pair in settings.items() for part in ("--set", "=".join(pair))]
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_HERE / program), "--ready-file", str(ready), *flags],
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        facts = json.loads(ready.read_text())
        self.kafka_port = int(facts["kafka"].rpartition(":")[2])
        self.grpc = facts["grpc"]

    def check_end(self) -> None:
        _, said = self.process.communicate(timeout=30)
        assert self.process.returncode == ExitCode.FAILED
        *events, sentence = said.splitlines()
        assert sentence == f"ottla-broker: An invariant was violated and the broker stopped: {PROMISE}."
        logged = [json.loads(line) for line in events]
        (told,) = [e for e in logged if e["event"] == "invariant violated; shutting down"]
        assert told["invariant"] == PROMISE and told["level"] == "error"
        assert "stopped" in [event["event"] for event in logged], "it left in order, within its deadline"
        # The next start scans what was written: in-memory state that made the marker is not trusted.
        assert self.log_dir.is_dir() and not (self.log_dir / CLEAN_STOP).exists()


@pytest.fixture(params=["broken_broker.py"])
def doomed(request: pytest.FixtureRequest, local_cluster: LocalCluster, tmp_path: Path) -> Iterator[Doomed]:
    """A cluster of its own in the same etcd, of one broker with a planted bug."""
    broker = Doomed(request.param, local_cluster, tmp_path)
    yield broker
    if broker.process.poll() is None:
        broker.process.kill()
    broker.process.communicate(timeout=10)


async def test_on_the_kafka_edge(doomed: Doomed) -> None:
    peer = await Peer.connect(doomed.kafka_port)
    partition = list_offsets.ListOffsetsPartition(partition_index=i32(0), timestamp=i64(-1))
    topic = list_offsets.ListOffsetsTopic(name=TopicName("t"), partitions=(partition,))
    peer.send(2, 1, replica_id=BrokerId(-1), topics=(topic,))
    assert await peer.closed(timeout_s=20)
    doomed.check_end()


def test_on_the_grpc_edge(doomed: Doomed) -> None:
    with grpc.insecure_channel(doomed.grpc) as channel:
        ask = pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="t", partition=0, timestamp_ms=-1)])
        with pytest.raises(grpc.RpcError):
            broker_pb2_grpc.LogStub(channel).ListOffsets(ask, timeout=10)
    doomed.check_end()


@pytest.mark.parametrize("doomed", ["failing_disk_broker.py"], indirect=True)
def test_without_a_disk(doomed: Doomed) -> None:
    with Admin(doomed.grpc) as admin:
        admin.create_topics([NewTopic("doomed", 1)])
    batch = bytes(build_batch([Record(0, 0, None, b"lost", [])]))
    part = pb.PartitionRecords(topic="doomed", partition=0, records=batch)
    request = pb.ProduceRequest(correlation=1, acks=-1, timeout_ms=5000, partitions=[part])
    with grpc.insecure_channel(doomed.grpc) as channel:
        (answer,) = broker_pb2_grpc.LogStub(channel).Produce(iter([request]), timeout=10)
    assert answer.partitions[0].error.name == "KAFKA_STORAGE_ERROR"
    _, said = doomed.process.communicate(timeout=30)
    assert doomed.process.returncode == ExitCode.BAD_LOG_DIR
    last = said.splitlines()[-1]
    assert (
        last.startswith(f"ottla-broker: All log directories have failed ({doomed.log_dir}: ")
        and "planted" in last
    )
    assert not (doomed.log_dir / CLEAN_STOP).exists(), "the next start scans its logs"
