"""The comparison of client libraries: every library function writes or reads what it should, and the table is right."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from ottla_bench.client_libraries import CONSUME, PRODUCE, table
from ottla_bench.client_load import LIBRARIES
from ottla_cli.local_cluster import LocalCluster
from ottla_client.sync import Admin, Producer


def test_ratios_are_to_the_best_of_each_other_library() -> None:
    found = dict.fromkeys(LIBRARIES, (1000.0, 1000.0)) | {
        "ottla_poll": (3_000.0, 1_000.0),
        "aiokafka_getmany": (2_000.0, 1_000.0),
        "confluent_consume": (4_000.0, 1_000.0),
    }
    rows = {row[0]: row[1:] for row in table(CONSUME, found)}
    assert rows["Ottla, `poll`"] == ["3 k", "1 k", "1.50", "0.75"]
    assert set(PRODUCE.values()) | set(CONSUME.values()) == set(LIBRARIES)


@pytest.mark.integration
def test_every_library_is_measured(local_cluster: LocalCluster) -> None:
    records = 5_000
    with Producer(local_cluster.grpc_bootstrap) as producer, Admin(local_cluster.grpc_bootstrap) as admin:
        admin.create_topics(["bench-read"])
        for _ in range(records):
            producer.send("bench-read", b"v" * 100, partition=0)
    for name, library in LIBRARIES.items():
        address = local_cluster.grpc_bootstrap if name.startswith("ottla") else local_cluster.kafka_bootstrap
        topic = "bench-read" if name in CONSUME.values() else f"bench-{name}".replace("_", "-")
        work = library(address, topic, records)
        spent = asyncio.run(work) if isinstance(work, Coroutine) else work
        assert spent["cpu_s"] > 0 and spent["records"] >= 3_000 - 500, name
