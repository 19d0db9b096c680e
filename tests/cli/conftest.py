"""`ottla`: the command, pointed at the cluster that all tests share."""

from __future__ import annotations

import pytest

from cli.ottla_command import Ottla
from ottla_cli.local_cluster import LocalCluster


@pytest.fixture
def ottla(local_cluster: LocalCluster, capsysbinary: pytest.CaptureFixture[bytes]) -> Ottla:
    return Ottla(local_cluster.grpc_bootstrap, capsysbinary)
