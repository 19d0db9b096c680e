"""The dashboards' queries in a real Prometheus that scrapes three busy brokers, as on Kubernetes and elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import Producer as KafkaProducer
from prometheus_client import start_http_server

from observe.monitoring_files import boards, queries, substituted
from observe.prometheus_process import Prometheus
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin, Producer
from ottla_core.errors import MessageTooLarge
from ottla_operator import metrics as operator_metrics

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
#: On Kubernetes with one broker selected, and without labels; an empty value matches only series without the label.
PLACES = {
    "kubernetes": {
        "cluster": "main", "namespace": "shop", "pod": "main-broker-[012]", "instance": ".*",
        "topic": "orders", "group": "billing",
    },
    "elsewhere": {"cluster": "", "namespace": "", "pod": "", "instance": ".*", "topic": ".*", "group": ".*"},
}  # fmt: skip
#: Spark's own metrics: `test_spark_dashboard` asks for them.
NOT_HERE = {"ottla-spark"}


class Load:
    """A little of all that is counted: flushed writes, reads in a group, changes and errors, by both protocols."""

    def __init__(self, cluster: LocalCluster) -> None:
        address = {"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0}
        self._producer = KafkaProducer(address)
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
        assert self._producer.flush(10) == 0
        self._consumer.consume(50, 0.5)
        self._admin.alter_configs({"retention.ms": str(time.time_ns())}, topic="orders")
        with Producer(self._grpc) as producer, pytest.raises(MessageTooLarge):
            producer.send_and_wait("notes", b"longer than this topic takes" * 10)

    def close(self) -> None:
        self._consumer.close()
        self._admin.stop()


def operator_works() -> None:
    """A reconciliation that changes something."""
    operator_metrics.RECONCILES.labels("Topic", "done").inc()
    operator_metrics.RECONCILE_SECONDS.labels("Topic").observe(0.1)
    operator_metrics.DRIFT.labels("Topic").inc()
    operator_metrics.ACTIONS.labels("Topic", "alter").inc()
    operator_metrics.KUBE_REQUESTS.labels("PATCH", "topics", "200").inc()


@pytest.fixture
def operator_page() -> Iterator[str]:
    """The operator's own metrics."""
    operator_works()
    for ready in ("true", "false"):
        operator_metrics.RESOURCES.labels("Topic", ready).set(0)
    operator_metrics.GROUP_LAG.labels("shop", "billing").set(7)
    server, thread = start_http_server(0, addr="127.0.0.1")
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)
    operator_metrics.forget_group(("shop", "billing"))


def _asked() -> dict[str, str]:
    """Query by place, dashboard and panel."""
    return {
        f"{place}, {name}, {title}, {number}": substituted(query, variables)
        for place, variables in PLACES.items()
        for name, board in boards().items()
        if name not in NOT_HERE
        for number, (title, query) in enumerate(queries(board))
    }


def _has_data(prometheus: Prometheus, query: str) -> bool:
    return any(value == value for _, value in prometheus.query(query))  # NaN is no data


def test_every_query_of_every_panel_returns_data(tmp_path: Any, operator_page: str) -> None:
    with LocalCluster(brokers=3) as cluster:
        operator = {"job_name": "operator", "static_configs": [{"targets": [operator_page]}]}
        shop = {
            "job_name": "shop-operator",
            "static_configs": [{"targets": [operator_page], "labels": {"namespace": "shop"}}],
        }
        pods = {
            "job_name": "shop-brokers",
            "static_configs": [
                {
                    "targets": [broker.http],
                    "labels": {
                        "cluster": "main",
                        "namespace": "shop",
                        "pod": f"main-broker-{broker.id}",
                    },
                }
                for broker in cluster.brokers.values()
            ],
        }
        targets = [broker.http for broker in cluster.brokers.values()]
        with (
            Prometheus(tmp_path, targets, jobs=[pods, operator, shop]) as prometheus,
            closing(Load(cluster)) as load,
        ):
            silent, deadline = _asked(), time.monotonic() + PATIENCE_S
            while silent and time.monotonic() < deadline:
                load.some()
                operator_works()
                silent = {where: query for where, query in silent.items() if not _has_data(prometheus, query)}
            assert silent == {}
            # Two sets of labels for one cluster: it has one id, so it counts as one whose three brokers are online.
            variables = PLACES["elsewhere"]
            found = {
                title: prometheus.query(substituted(query, variables))[0][1]
                for title, query in queries(boards()["ottla-cluster"])
                if title in ("Brokers", "Brokers offline", "Clusters without one controller")
            }
            assert found == {"Brokers": 3, "Brokers offline": 0, "Clusters without one controller": 0}
            choices = [
                variable["definition"].split("(")[1].partition(")")[0].rsplit(", ", 1)
                for board in boards().values()
                for variable in board["templating"]["list"]
                if "definition" in variable
            ]
            for series, label in choices:
                rows = prometheus.query(
                    substituted(series, {"cluster": ".*", "namespace": ".*", "pod": ".*"})
                )
                assert any(label in labels for labels, _ in rows), f"no choice for {label} in {series}"
