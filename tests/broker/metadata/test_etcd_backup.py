"""Snapshots of etcd: complete or absent, a bounded number, and a cluster that continues from a restored one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_ import bodies
from ottla_broker import etcd_backup
from ottla_broker.etcd_backup import BackupFailed, superfluous, write_snapshot
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.sync import Admin, Consumer, Producer
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.resources import config_map
from ottla_operator.specs import Meta


async def chunks(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


DATABASE = os.urandom(1024)
SNAPSHOT = DATABASE + hashlib.sha256(DATABASE).digest()


@pytest.mark.parametrize("size", [1, 31, 700, 5000])
async def test_a_complete_snapshot_gets_its_name(tmp_path: Path, size: int) -> None:
    assert await write_snapshot(chunks(SNAPSHOT, size), str(tmp_path / "a.db")) == len(SNAPSHOT)
    assert (tmp_path / "a.db").read_bytes() == SNAPSHOT and os.listdir(tmp_path) == ["a.db"]


@pytest.mark.parametrize("damaged", [SNAPSHOT[:-1], SNAPSHOT[512:], b"", DATABASE, b"x" + SNAPSHOT[1:]])
async def test_a_cut_off_snapshot_leaves_nothing(tmp_path: Path, damaged: bytes) -> None:
    with pytest.raises(BackupFailed, match="does not match its checksum"):
        await write_snapshot(chunks(damaged, 300), str(tmp_path / "a.db"))
    assert os.listdir(tmp_path) == []


async def test_two_jobs_of_the_same_second_do_not_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")

    async def while_another_starts() -> AsyncIterator[bytes]:
        yield SNAPSHOT[:100]
        with pytest.raises(FileExistsError):
            await write_snapshot(chunks(SNAPSHOT, 700), path)
        yield SNAPSHOT[100:]

    assert await write_snapshot(while_another_starts(), path) == len(SNAPSHOT)
    assert (tmp_path / "a.db").read_bytes() == SNAPSHOT and os.listdir(tmp_path) == ["a.db"]


def test_only_our_oldest_files_are_superfluous() -> None:
    names = ["etcd-20260103T000000Z.db", "notes.txt", "etcd-20260101T000000Z.db", "etcd-20260102T000000Z.db"]
    assert superfluous(names, 2) == ["etcd-20260101T000000Z.db"]
    assert superfluous(names, 3) == []


@pytest.mark.integration
def test_an_etcd_that_does_not_answer_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTTLA_ETCD_ENDPOINTS", "127.0.0.1:1")
    assert etcd_backup.main(["--to", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("etcd-backup: etcd sent no snapshot: ") and "Traceback" not in said
    assert os.listdir(tmp_path) == []


@pytest.mark.integration
@pytest.mark.parametrize(
    "listeners",
    [
        {},
        {
            "listeners": {"plaintext": {"enabled": False}, "tls": {"authentication": "scram"}},
            "authorization": {},
        },
    ],
    ids=["plain", "secured"],
)
def test_the_job_on_kubernetes_reads_what_the_operator_writes(
    listeners: dict[str, Any],
    make_cluster: Callable[..., LocalCluster],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ConfigMap of the brokers and nothing else: neither a broker's id nor its advertised addresses."""
    body = bodies.cluster(etcd={"endpoints": [make_cluster().etcd.endpoint]}, **listeners)
    written = config_map(Meta.of(body), ClusterSpec.of(body))["data"]
    (tmp_path / "ottla.properties").write_text(written["ottla.properties"])
    monkeypatch.setenv("OTTLA_CONFIG", str(tmp_path / "ottla.properties"))
    (tmp_path / "backups").mkdir()
    assert etcd_backup.main(["--to", str(tmp_path / "backups")]) == 0
    assert len(os.listdir(tmp_path / "backups")) == 1


@pytest.mark.integration
def test_a_cluster_continues_from_a_restored_snapshot(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of docs/kubernetes.md: stop the brokers, restore, start."""
    etcdctl = shutil.which("etcdctl")
    if etcdctl is None:
        pytest.skip("needs etcdctl (Debian: etcd-client)")
    backups = tmp_path / "backups"
    backups.mkdir()
    data = str(tmp_path / "data")
    cluster = make_cluster(data)
    with Admin(cluster.grpc_bootstrap) as admin, Producer(cluster.grpc_bootstrap) as producer:
        admin.create_topics([NewTopic("kept", 1)])
        producer.send_and_wait("kept", b"before the backup")
        monkeypatch.setenv("OTTLA_ETCD_ENDPOINTS", cluster.etcd.endpoint)
        assert etcd_backup.main(["--to", str(backups), "--keep", "1"]) == 0
        producer.send_and_wait("kept", b"after the backup")
    peer = f"http://127.0.0.1:{cluster.etcd._peer_port}"
    cluster.stop()
    shutil.rmtree(f"{data}/etcd")
    (snapshot,) = backups.iterdir()
    subprocess.run(
        [etcdctl, "snapshot", "restore", str(snapshot), "--data-dir", f"{data}/etcd", "--name", "ottla",
         "--initial-cluster", f"ottla={peer}", "--initial-advertise-peer-urls", peer],
        env={**os.environ, "ETCDCTL_API": "3"}, check=True, timeout=60, capture_output=True,
    )  # fmt: skip
    cluster.start()
    with Consumer(cluster.grpc_bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("kept", 0)])
        read = [record.value for record in consumer.poll(timeout_ms=10_000)]
    assert read == [b"before the backup", b"after the backup"], (
        "records are on the brokers' disks, not in etcd"
    )
