"""The brokers' metrics in a real Prometheus: lag of a known trickle, and the queries of existing dashboards."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

import ottla_core.errors
from observe.chart_scrape import CLUSTER, NAMESPACE, scrape_job
from observe.prometheus_process import Prometheus
from ottla_bench.kafka_jars import run_tool
from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic, TopicPartition
from ottla_client.sync import Admin, Producer
from ottla_operator.brokers import Brokers
from ottla_operator.group_plan import SeenGroup, facts_of

pytestmark = pytest.mark.integration

TOPIC, GROUP = "trickle", "slow-readers"
SETTLED, MARKED, SETTLED_GROUP = "settled", "marked", "settled-readers"

#: kafka_exporter's own dashboard (7589), with Strimzi's additions.
KAFKA_EXPORTER = (
    "sum(rate(kafka_topic_partition_current_offset{topic=~'.*'}[1m])) by (topic)",
    "sum(kafka_consumergroup_lag{topic=~'.*'}) by (consumergroup, topic)",
    "sum(delta(kafka_topic_partition_current_offset{topic=~'.*'}[5m])/5) by (topic)",
    "sum(delta(kafka_consumergroup_current_offset{topic=~'.*'}[5m])/5) by (consumergroup, topic)",
    "sum by(topic) (kafka_topic_partitions{topic=~'.*'})",
    "count(kafka_topic_partitions)",
    "sum(kafka_topic_partition_replicas)",
    "sum(kafka_topic_partition_in_sync_replica)",
    "sum(kafka_topic_partition_under_replicated_partition)",
    "sum(kafka_topic_partition_leader_is_preferred < bool 1)",
    "sum(kafka_consumergroup_lag_sum) by (consumergroup)",
    "kafka_consumergroup_members",
    "kafka_topic_partition_oldest_offset",
    "kafka_brokers",
)
#: Strimzi's Kafka dashboard and alert rules, with their selectors as they are.
_OF = 'namespace="$kubernetes_namespace",strimzi_io_cluster="$strimzi_cluster_name"'
_POD = 'kubernetes_pod_name=~"$strimzi_cluster_name-$kafka_broker"'
_TOPIC = f'{_OF},topic=~"$kafka_topic",topic!="",{_POD}'
STRIMZI = (
    f"sum(kafka_server_replicamanager_leadercount{{{_OF}}})",
    f"sum(kafka_controller_kafkacontroller_activecontrollercount{{{_OF}}})",
    f"sum(irate(kafka_controller_controllerstats_uncleanleaderelections_total{{{_OF}}}[5m]))",
    f"sum(kafka_server_replicamanager_partitioncount{{{_OF}}})",
    f"sum(kafka_server_replicamanager_underreplicatedpartitions{{{_OF}}})",
    f"sum(kafka_cluster_partition_atminisr{{{_OF}}})",
    f"sum(kafka_cluster_partition_underminisr{{{_OF}}})",
    f"sum(kafka_controller_kafkacontroller_offlinepartitionscount{{{_OF}}})",
    f"sum(irate(kafka_server_brokertopicmetrics_bytesin_total{{{_TOPIC}}}[1m]))",
    f"sum(irate(kafka_server_brokertopicmetrics_bytesout_total{{{_TOPIC}}}[1m]))",
    f"sum(irate(kafka_server_brokertopicmetrics_messagesin_total{{{_TOPIC}}}[1m]))",
    f"sum(kafka_server_socket_server_metrics_connection_count{{{_OF},{_POD}}}) by (kubernetes_pod_name, listener)",
    f'kafka_log_log_size{{{_OF},{_POD},topic=~"$kafka_topic",partition=~"$kafka_partition"}}',
    # What its variables are filled from.
    f"kafka_cluster_partition_replicascount{{{_OF},{_POD}}}",
    'kafka_server_replicamanager_leadercount{namespace="$kubernetes_namespace"}',
    # Its rules.
    "sum(kafka_controller_kafkacontroller_activecontrollercount) by (strimzi_io_name, namespace) == 1",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_log_logmanager_offlinelogdirectorycount",
)
#: Under names of other setups, and of any process.
OTHERS = (
    "kafka_server_replicafetchermanager_maxlag",
    "sum by (request) (rate(kafka_network_requestmetrics_requests_total[1m]))",
    "sum(kafka_network_requestmetrics_errors_total) by (request, error)",
    "sum(kafka_server_socketservermetrics_connection_count) by (listener)",
    "sum(process_open_fds)",
    "time() - process_start_time_seconds",
)
VARIABLES = {
    "$kubernetes_namespace": NAMESPACE,
    "$strimzi_cluster_name": CLUSTER,
    "$kafka_broker": ".*",
    "$kafka_topic": ".+",
    "$kafka_partition": ".*",
}


class World(NamedTuple):
    cluster: LocalCluster
    prometheus: Prometheus
    #: When the records of partition 0 were written, by offset.
    times: list[float]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("prometheus")
    with LocalCluster(str(folder / "data"), brokers=3) as cluster:
        targets = [broker.http for broker in cluster.brokers.values()]
        jobs = [scrape_job(targets)]
        with Prometheus(folder, [], jobs=jobs) as prometheus, Admin(cluster.grpc_bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=3)])
            times: list[float] = []
            done = threading.Event()
            writer = threading.Thread(target=_write, args=(cluster, times, done))
            writer.start()
            prometheus.until(lambda: len(times) > 20, "twenty records")
            admin.alter_group_offsets(GROUP, {TopicPartition(TOPIC, 0): 10})
            _read_with_kcat(cluster)
            with pytest.raises(ottla_core.errors.UnknownTopicOrPartition):
                admin.delete_topics(["no-such-topic"])
            yield World(cluster, prometheus, times)
            done.set()
            writer.join(30)


def _write(cluster: LocalCluster, times: list[float], done: threading.Event) -> None:
    with Producer(cluster.grpc_bootstrap, linger_ms=0) as producer:
        while not done.wait(0.2):
            times.append(time.time())
            producer.send(TOPIC, b"drop", partition=0).result(20)


def _read_with_kcat(cluster: LocalCluster) -> None:
    """A Kafka client with a name, which waits for records."""
    kcat = ["kcat", "-b", cluster.kafka_bootstrap, "-X", "client.id=dashboard-reader"]
    subprocess.run([*kcat, "-C", "-t", TOPIC, "-c", "25", "-q"], check=True, capture_output=True, timeout=60)


def _lag_s(world: World) -> float | None:
    found = world.prometheus.query(f'ottla_consumergroup_lag_seconds{{consumergroup="{GROUP}"}}')
    return found[0][1] if found else None


def test_lag_in_seconds_is_the_age_of_the_oldest_record(world: World) -> None:
    prometheus = world.prometheus
    prometheus.until(lambda: (_lag_s(world) or 0) >= 10, "ten seconds of lag", 60)
    expression = f'ottla_consumergroup_lag_seconds{{consumergroup="{GROUP}"}}'
    for _ in range(5):
        ((labels, sampled_at),) = prometheus.query(f"timestamp({expression})")
        ((_, lag_s),) = prometheus.query(expression)
        assert (labels["topic"], labels["partition"]) == (TOPIC, "0")
        assert lag_s == pytest.approx(sampled_at - world.times[10], rel=0.1)
        time.sleep(1.1)


def test_lag_in_records_is_what_the_admin_says(world: World) -> None:
    prometheus = world.prometheus
    expression = f'kafka_consumergroup_lag{{consumergroup="{GROUP}"}}'
    prometheus.until(lambda: prometheus.query(expression), "lag")
    with Admin(world.cluster.grpc_bootstrap) as admin:
        before = admin.group_lag(GROUP)[TopicPartition(TOPIC, 0)].lag
        time.sleep(2.2)
        ((_, lag),) = prometheus.query(expression)
        after = admin.group_lag(GROUP)[TopicPartition(TOPIC, 0)].lag
        assert before is not None and after is not None
        assert before <= lag <= after
    ((_, lag_sum),) = prometheus.query(f'kafka_consumergroup_lag_sum{{consumergroup="{GROUP}"}}')
    assert lag_sum > 0


class Shown(NamedTuple):
    """What one view says of a group: lag of each partition, and of all in seconds if it knows that."""

    lags: dict[tuple[str, int], int]
    seconds: float | None


def _settled(world: World) -> None:
    """Two topics that do not grow, one of them with a transaction's marker at its end."""
    with Admin(world.cluster.grpc_bootstrap) as admin:
        admin.create_topics([NewTopic(SETTLED, 2, 3), NewTopic(MARKED, 1, 3)])
        with Producer(world.cluster.grpc_bootstrap) as producer:
            for number in range(30):
                producer.send(SETTLED, b"%d" % number, partition=number % 2)
        marks = Producer(world.cluster.grpc_bootstrap, transactional_id="marks")
        with marks as producer, producer.transaction():
            producer.send(MARKED, b"last", partition=0)
        first, second, marked = (
            TopicPartition(SETTLED, 0),
            TopicPartition(SETTLED, 1),
            TopicPartition(MARKED, 0),
        )
        admin.alter_group_offsets(SETTLED_GROUP, {first: 10, second: 15, marked: 1})


def _by_cli(world: World) -> Shown:
    command = [sys.executable, "-m", "ottla_cli", "groups", "describe", SETTLED_GROUP, "--json"]
    done = subprocess.run(
        [*command, "-b", world.cluster.grpc_bootstrap], check=True, capture_output=True, timeout=60
    )
    (found,) = json.loads(done.stdout)
    lags = {(row["topic"], row["partition"]): row["lag"] for row in found["partitions"]}
    assert found["lag"] == sum(lags.values())
    assert found["lag_s"] == max(row["lag_s"] for row in found["partitions"])
    return Shown(lags, found["lag_s"])


def _by_metrics(world: World) -> Shown:
    def rows(metric: str) -> list[tuple[dict[str, str], float]]:
        return world.prometheus.query(f'{metric}{{consumergroup="{SETTLED_GROUP}"}}')

    world.prometheus.until(lambda: len(rows("kafka_consumergroup_lag")) == 3, "lag of all partitions")
    lags = {(row["topic"], int(row["partition"])): int(lag) for row, lag in rows("kafka_consumergroup_lag")}
    return Shown(lags, max(seconds for _, seconds in rows("ottla_consumergroup_lag_seconds")))


def _by_operator(world: World) -> Shown:
    """The status of a ConsumerGroup, made by the operator's own code from what it asks of brokers."""

    async def ask() -> SeenGroup:
        brokers = await Brokers.connect(world.cluster.grpc_bootstrap)
        try:
            return await brokers.group(SETTLED_GROUP, [SETTLED, MARKED])
        finally:
            await brokers.close()

    status = facts_of(asyncio.run(ask()))
    lags = {(row["topic"], row["partition"]): row["lag"] for row in status["lag"]}
    assert status["totalLag"] == sum(lags.values())
    return Shown(lags, status["lagSeconds"])


def _by_kafka(world: World) -> Shown:
    done = run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--bootstrap-server", world.cluster.kafka_bootstrap, "--describe", "--group", SETTLED_GROUP,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG …
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(SETTLED_GROUP)]
    return Shown({(row[1], int(row[2])): int(row[5]) for row in rows}, None)


@pytest.mark.java
def test_all_that_show_lag_agree(world: World) -> None:
    _settled(world)
    written_at = time.time()
    shown = {each.__name__: each(world) for each in (_by_kafka, _by_metrics, _by_cli, _by_operator)}
    expected = {(SETTLED, 0): 5, (SETTLED, 1): 0, (MARKED, 0): 1}
    assert {name: each.lags for name, each in shown.items()} == dict.fromkeys(shown, expected)
    # They look one after the other; none may count the marker, or be off by more than that takes.
    took = time.time() - written_at
    for name, each in shown.items():
        if each.seconds is not None:
            assert 0 < each.seconds <= took + 2, name


def test_seconds_of_a_trickle_agree(world: World) -> None:
    """The oldest record that is not committed was written at a known time; each view says so within 10 %."""
    world.prometheus.until(lambda: (_lag_s(world) or 0) >= 15, "fifteen seconds of lag", 60)
    with Admin(world.cluster.grpc_bootstrap) as admin:
        by_client = admin.group_lag(GROUP)[TopicPartition(TOPIC, 0)].seconds
        client_at = time.time()
        ottla = [sys.executable, "-m", "ottla_cli", "groups", "list", GROUP, "--lag", "--json"]
        done = subprocess.run(
            [*ottla, "-b", world.cluster.grpc_bootstrap], check=True, capture_output=True, timeout=60
        )
        cli_at = time.time()
    (row,) = json.loads(done.stdout)
    assert by_client == pytest.approx(client_at - world.times[10], rel=0.1)
    assert row["lag_s"] == pytest.approx(cli_at - world.times[10], rel=0.1)


@pytest.mark.parametrize("expression", [*KAFKA_EXPORTER, *STRIMZI, *OTHERS])
def test_queries_of_existing_dashboards_return_data(world: World, expression: str) -> None:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    world.prometheus.until(lambda: world.prometheus.query(expression), expression, 20)


def test_the_labels_that_strimzis_dashboards_offer(world: World) -> None:
    rows = world.prometheus.query("kafka_server_replicamanager_leadercount")
    assert {labels["kubernetes_pod_name"] for labels, _ in rows} == {
        f"main-brokers-{id_}" for id_ in range(3)
    }
    for labels, _ in rows:
        assert (labels["cluster"], labels["strimzi_io_cluster"]) == (CLUSTER, CLUSTER)
        assert (labels["strimzi_io_name"], labels["strimzi_io_kind"]) == (f"{CLUSTER}-kafka", "Kafka")


def test_each_partition_is_counted_once(world: World) -> None:
    def figure(expression: str) -> float:
        found = world.prometheus.query(expression)
        return found[0][1] if found else -1.0

    def agrees() -> bool:
        count = figure("sum(kafka_topic_partitions)")
        return (
            figure("sum(kafka_controller_kafkacontroller_activecontrollercount)") == 1
            and figure("count(kafka_topic_partition_leader)") == count
            and figure("sum(kafka_server_replicamanager_leadercount)") == count
        )

    # Brokers are scraped one after the other: one that is late shows up in the sums later.
    world.prometheus.until(agrees, "one controller, one leader per partition")


def test_disks_have_sizes(world: World) -> None:
    prometheus = world.prometheus
    for labels, total in prometheus.query("ottla_log_dir_total_bytes"):
        ((_, free),) = prometheus.query(f'ottla_log_dir_free_bytes{{instance="{labels["instance"]}"}}')
        assert 0 < free <= total
    sizes = prometheus.query(f'ottla_topic_log_bytes{{topic="{TOPIC}"}}')
    assert len(sizes) == 3 and all(size > 0 for _, size in sizes)


def test_followers_have_little_lag(world: World) -> None:
    def rows() -> list[tuple[dict[str, str], float]]:
        return world.prometheus.query("ottla_replication_follower_lag_seconds")

    def followers() -> set[str]:
        return {labels["follower"] for labels, _ in rows()}

    world.prometheus.until(lambda: followers() == {"0", "1", "2"}, "all three follow the others")
    assert all(lag_s < 10 for _, lag_s in rows())


def test_requests_have_phases_on_both_edges(world: World) -> None:
    prometheus = world.prometheus
    wanted = {
        ("grpc", "Produce", "local"),
        ("grpc", "Produce", "replication"),
        ("kafka", "Fetch", "local"),
        ("kafka", "Fetch", "poll"),
    }

    def found() -> set[tuple[str, str, str]]:
        rows = prometheus.query("sum by (edge, api, phase) (ottla_request_phase_seconds_total) > 0")
        return {(labels["edge"], labels["api"], labels["phase"]) for labels, _ in rows}

    prometheus.until(lambda: wanted <= found(), "phases of both edges")
    ((_, slowest_s),) = prometheus.query(
        'histogram_quantile(1, sum by (le) (ottla_request_seconds_bucket{edge="kafka",api="Fetch"}))'
    )
    assert slowest_s < 0.2, "records come every 0.2 s: waiting for them is not latency"


def test_traffic_by_client_id(world: World) -> None:
    for metric in ("ottla_client_requests_total", "ottla_client_received_bytes_total"):
        expression = f'sum({metric}{{edge="kafka",client_id="dashboard-reader"}}) > 0'
        world.prometheus.until(partial(world.prometheus.query, expression), expression)


def test_calls_to_etcd_are_timed(world: World) -> None:
    rows = world.prometheus.query("sum by (operation) (ottla_etcd_request_seconds_count)")
    assert {labels["operation"] for labels, _ in rows} >= {"transact", "keep_alive"}
