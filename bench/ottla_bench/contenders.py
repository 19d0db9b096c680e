"""The two sides of the comparison behind one face: start, processes, stop. [A]

Both get an empty folder and free ports, and are asked for Metadata every 10 ms by the same code until they
answer. Kafka's clock starts at the exec of its JVM on a formatted folder (formatting is not counted); Ottla's
before anything of it runs, so that etcd is in it, and the look at etcd's version too. Ottla's modules are compiled
beforehand, as pip does with what it installs; a checkout may never have been.
"""

from __future__ import annotations

import compileall
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ottla_broker
import ottla_core
from ottla_bench.kafka_server import KafkaServer, answers_metadata
from ottla_cli.local_cluster import START_TIMEOUT_S, LocalCluster

KAFKA = "Kafka"
OTTLA = "Ottla"
BROKER = "broker"
ETCD = "etcd"
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Running:
    bootstrap: str
    #: Pids by role; Kafka's controller lives in its broker.
    processes: dict[str, int]
    started_in_s: float


@contextmanager
def running(name: str, settings: Mapping[str, str] | None = None) -> Iterator[Running]:
    """One of the two, for as long as the block lasts; nothing of it is left afterwards."""
    if name == KAFKA:
        with KafkaServer(overrides=dict(settings or {})) as kafka:
            yield Running(kafka.bootstrap, {BROKER: kafka.pid}, kafka.started_in_s)
        return
    compile_ottla()
    cluster = LocalCluster(settings=settings)
    try:
        yield start_ottla(cluster)
    finally:
        cluster.stop()


@cache
def compile_ottla() -> None:
    for package in (ottla_core, ottla_broker):
        compileall.compile_dir(Path(package.__file__ or ".").parent, quiet=1)


def start_ottla(cluster: LocalCluster) -> Running:
    began = time.monotonic()
    cluster.begin()
    await_metadata(cluster.kafka_bootstrap, began + START_TIMEOUT_S)
    started_in_s = time.monotonic() - began
    cluster.wait_ready(began + START_TIMEOUT_S)
    if cluster.etcd is None:
        raise RuntimeError("the cluster runs without its etcd")
    processes = {BROKER: cluster.pids[0], ETCD: cluster.etcd.child.pid}
    return Running(cluster.kafka_bootstrap, processes, started_in_s)


def await_metadata(bootstrap: str, deadline: float) -> None:
    host, _, port = bootstrap.partition(":")
    while not answers_metadata(host, int(port)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{bootstrap} does not answer a Metadata request")
        time.sleep(_POLL_S)
