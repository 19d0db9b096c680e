"""etcd comes back from an old backup: brokers refuse it, and `ottla cluster recover` goes on from it, for real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cluster.steady_writer import read_all
from ottla_cli.failure import Failure
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BROKERS = 3


def ottla(*arguments: str, given: bytes = b"", code: int = 0) -> bytes:
    command = [sys.executable, "-P", "-m", "ottla_cli", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def write(cluster: LocalCluster, values: Sequence[str]) -> None:
    ottla("produce", "letters", "-b", cluster.grpc_bootstrap, given="\n".join(values).encode())


def test_an_old_backup_is_refused_and_recovered_from(tmp_path: Path) -> None:
    data, backup = str(tmp_path / "data"), str(tmp_path / "backup")
    early, late, after = ([f"{when}-{n}" for n in range(200)] for when in ("early", "late", "after"))
    with LocalCluster(data, brokers=BROKERS) as cluster:
        at = ("-b", cluster.grpc_bootstrap)
        options = ("--partitions", "2", "--replication-factor", "3", "--config", "min.insync.replicas=2")
        ottla("topics", "create", "letters", *at, *options)
        write(cluster, early)
        assert b"still registered" in ottla(
            "cluster", "recover", "--yes", "--set", f"etcd.endpoints={cluster.etcd_endpoint}", code=1
        )
    shutil.copytree(f"{data}/etcd", backup)
    with LocalCluster(data, brokers=BROKERS) as cluster:
        write(cluster, late)
        ottla("topics", "create", "younger", "-b", cluster.grpc_bootstrap, "--replication-factor", "3")
    shutil.rmtree(f"{data}/etcd")
    shutil.copytree(backup, f"{data}/etcd")

    with pytest.raises(Failure, match=r"restored from an older backup.*ottla cluster recover"):
        LocalCluster(data, brokers=BROKERS).start()
    done = json.loads(ottla("cluster", "recover", "--yes", "--data", data, "--json"))
    assert (done["topics"], done["partitions"], done["number"]) == (1, 2, 1)

    with LocalCluster(data, brokers=BROKERS) as cluster:
        write(cluster, after)
        found = [value.decode() for value in read_all(cluster.kafka_bootstrap, "letters", 2)]
        assert sorted(found) == sorted([*early, *late, *after])
    assert all(os.path.isdir(f"{data}/broker-{n}/younger-0") for n in range(BROKERS)), (
        "nobody asked to delete it"
    )
    with LocalCluster(data, brokers=BROKERS):
        pass  # What was recovered is what they have seen now.
