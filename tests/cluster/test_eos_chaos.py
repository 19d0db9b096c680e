"""Consume-transform-produce is exactly once while a worker and a coordinator are killed; see `eos_chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.eos_chaos import PARTITIONS, chaos
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def test_each_input_is_in_the_output_once(tmp_path: Path) -> None:
    with LocalCluster(brokers=3) as cluster, chaos(cluster, 1, tmp_path, print) as run:
        with run.writing():
            for what in ("worker", "coordinator of a transaction"):
                run.strike(what)
        assert run.verify() > PARTITIONS
