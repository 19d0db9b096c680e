"""The dashboard's queries, asked of a real Prometheus that scrapes three brokers under load and an operator."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from prometheus_client import start_http_server

from operator_.bodies import ROOT
from ottla_cli.free_ports import free_ports
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin
from ottla_client.sync import Producer as OttlaProducer
from ottla_core.errors import MessageTooLarge
from ottla_operator import metrics as operator_metrics

NAMESPACE = "shop"
PATIENCE_S = 90.0
#: Four scrapes: what Grafana takes at the least.
RATE_INTERVAL = "4s"


def queries() -> dict[str, str]:
    """By panel and name of the line, as Grafana would send them."""
    board = json.loads((ROOT / "charts/ottla/dashboards/ottla.json").read_text())
    found = {}
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", RATE_INTERVAL)
            query = query.replace("$namespace", NAMESPACE).replace("$pod", ".*")
            found[f"{panel['title']}: {target['legendFormat']}"] = query
    return found


class Prometheus:
    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The samples now. A query that is no query raises."""
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return [sample for sample in result if sample["value"][1] != "NaN"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False


@contextmanager
def prometheus(folder: Path, jobs: list[dict[str, Any]]) -> Iterator[Prometheus]:
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=log)
    try:
        found = Prometheus(address)
        deadline = time.monotonic() + PATIENCE_S
        while not found.is_ready():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait(30)


def scraped(name: str, targets: dict[str, str]) -> dict[str, Any]:
    """One job, with the labels that discovery in Kubernetes gives to pods."""
    found = [
        {"targets": [address], "labels": {"namespace": NAMESPACE, "pod": pod}}
        for pod, address in targets.items()
    ]
    return {"job_name": name, "static_configs": found}


class Load:
    """A little of all that is counted: flushed writes, reads in a group, changes and errors, by both protocols."""

    def __init__(self, cluster: LocalCluster) -> None:
        address = {"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0}
        self._producer = Producer(address)
        self._consumer = Consumer({**address, "group.id": "billing", "auto.offset.reset": "earliest"})
        self._grpc = cluster.grpc_bootstrap
        self._admin = Admin(self._grpc)
        self._admin.start()
        self._admin.create_topics([NewTopic("orders", 3, 3, {"flush.messages": "1"})])
        self._admin.create_topics([NewTopic("notes", 1, 3, {"max.message.bytes": "100"})])
        self._consumer.subscribe(["orders"])

    def some(self) -> None:
        for number in range(50):
            self._producer.produce("orders", b"%d" % number)
        assert self._producer.list_topics("not a name", timeout=10).topics["not a name"].error is not None
        assert self._producer.flush(10) == 0
        self._consumer.consume(50, 0.5)
        self._admin.alter_configs({"retention.ms": str(time.time_ns())}, topic="orders")
        with OttlaProducer(self._grpc) as producer, pytest.raises(MessageTooLarge):
            producer.send_and_wait("notes", b"longer than this topic takes" * 10)

    def close(self) -> None:
        self._consumer.close()
        self._admin.stop()


@pytest.fixture
def operator_page() -> Iterator[str]:
    """The operator's own metrics, as far as a look has touched them."""
    operator_metrics.RECONCILES.labels("Topic", "done").inc()
    operator_metrics.DRIFT.labels("Topic").inc()
    operator_metrics.RESOURCES.labels("Topic", "false").set(0)
    operator_metrics.GROUP_LAG.labels(NAMESPACE, "billing").set(7)
    server, thread = start_http_server(0, addr="127.0.0.1")
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)
    operator_metrics.forget_group((NAMESPACE, "billing"))


@pytest.mark.integration
def test_every_line_of_every_panel_shows_something(tmp_path: Path, operator_page: str) -> None:
    cluster = LocalCluster(brokers=3)
    try:
        cluster.start()
        brokers = {f"main-broker-{broker.id}": broker.http for broker in cluster.brokers.values()}
        jobs = [scraped("brokers", brokers), scraped("operator", {"operator": operator_page})]
        with prometheus(tmp_path, jobs) as found, closing(Load(cluster)) as load:
            silent, deadline = queries(), time.monotonic() + PATIENCE_S
            while silent and time.monotonic() < deadline:
                load.some()
                silent = {line: query for line, query in silent.items() if not found.ask(query)}
            assert silent == {}
            counted = [float(sample["value"][1]) for sample in found.ask("ottla_cluster_brokers")]
            assert counted == [3.0, 3.0, 3.0]
    finally:
        cluster.stop()
