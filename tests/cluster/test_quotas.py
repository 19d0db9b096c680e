"""Quotas with a real broker and stock clients: rates are held, others are not affected, clients are told."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.edge.kafka_batches import batch
from ottla_bench.kafka_jars import KAFKA_CONFIGS, run_tool
from ottla_broker.edge.grpc.callers import CLIENT_ID_KEY
from ottla_cli.local_cluster import LocalCluster
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc

pytestmark = [pytest.mark.integration, pytest.mark.java]

QUOTA = 2_000_000
VALUE = b"x" * 10_000


@pytest.fixture
def configs(local_cluster: LocalCluster) -> Callable[..., str]:
    """Kafka's own tool. Quotas stay: they are of client ids that no other test has."""

    def run(*arguments: str) -> str:
        done = run_tool(KAFKA_CONFIGS, "--bootstrap-server", local_cluster.kafka_bootstrap, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def producer(cluster: LocalCluster, client_id: str, waits: list[float]) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap,
            "client.id": client_id,
            "throttle_cb": lambda event: waits.append(event.throttle_time),
            "batch.size": 100_000,
            "linger.ms": 5,
            "message.timeout.ms": 60_000,
        }
    )


def send(client: Producer, size: int, at: list[float]) -> None:
    for _ in range(size // len(VALUE)):
        client.produce("quotas", VALUE, on_delivery=lambda error, _: at.append(time.monotonic()) or error)
    assert client.flush(60) == 0


def test_producers_and_consumers_are_held_to_their_quotas(
    local_cluster: LocalCluster, configs: Callable[..., str]
) -> None:
    admin = AdminClient({"bootstrap.servers": local_cluster.kafka_bootstrap})
    admin.create_topics([NewTopic("quotas", 1, 1)], operation_timeout=20)["quotas"].result(30)
    for client_id, name in (("slow", "producer_byte_rate"), ("reader", "consumer_byte_rate")):
        configs(
            *("--alter", "--entity-type", "clients", "--entity-name", client_id),
            *("--add-config", f"{name}={QUOTA}"),
        )
    described = configs("--describe", "--entity-type", "clients")
    assert "Quota configs for client-id 'slow' are producer_byte_rate=2000000.0" in described

    waits, free = list[float](), list[float]()
    at, at_free = list[float](), list[float]()
    began = time.monotonic()
    slow = producer(local_cluster, "slow", waits)
    send(slow, 4 * QUOTA, at)
    # The burst of one second, then the quota. The end of a wait is not waited for.
    assert 4 * QUOTA / (at[-1] - began + 1) == pytest.approx(QUOTA, rel=0.1)
    assert waits and 0 < max(waits) < 2, "librdkafka reports the throttle time, in seconds"

    send(producer(local_cluster, "free", free), 4 * QUOTA, at_free)
    assert free == [] and at_free[-1] - at_free[0] < 2, "another client is not held up"

    consumer = Consumer(
        {
            "bootstrap.servers": local_cluster.kafka_bootstrap,
            "client.id": "reader",
            "group.id": "quotas",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 200_000,
            "queued.max.messages.kbytes": 500,
        }
    )
    consumer.subscribe(["quotas"])
    read, first = 0, 0.0
    while read < 4 * QUOTA:
        for message in consumer.consume(100, timeout=10):
            assert not message.error()
            first = first or time.monotonic()
            read += len(message.value() or b"")
    took_s = time.monotonic() - first
    consumer.close()
    assert read / (took_s + 1) == pytest.approx(QUOTA, rel=0.15)


def test_defaults_and_what_is_not_supported(local_cluster: LocalCluster, configs: Callable[..., str]) -> None:
    both = (
        "--entity-type",
        "users",
        "--entity-name",
        "alice",
        "--entity-type",
        "clients",
        "--entity-default",
    )
    configs("--alter", *both, "--add-config", "producer_byte_rate=1000,consumer_byte_rate=2000")
    shown = configs("--describe", *both)
    assert "consumer_byte_rate=2000.0" in shown and "producer_byte_rate=1000.0" in shown
    refused = run_tool(
        KAFKA_CONFIGS,
        *("--bootstrap-server", local_cluster.kafka_bootstrap, "--alter", "--entity-type", "clients"),
        *("--entity-name", "slow", "--add-config", "request_percentage=50"),
    )
    assert refused.returncode != 0
    assert "request_percentage is not supported yet" in refused.stdout + refused.stderr


def test_the_native_protocol_has_the_same_quotas(
    local_cluster: LocalCluster, configs: Callable[..., str]
) -> None:
    admin = AdminClient({"bootstrap.servers": local_cluster.kafka_bootstrap})
    admin.create_topics([NewTopic("quotas-native", 1, 1)], operation_timeout=20)["quotas-native"].result(30)
    configs(
        *("--alter", "--entity-type", "clients", "--entity-name", "native"),
        *("--add-config", f"producer_byte_rate={QUOTA},consumer_byte_rate={QUOTA}"),
    )
    write = pb.PartitionRecords(topic="quotas-native", records=batch(b"x" * 500_000))
    asked = [pb.ProduceRequest(acks=1, timeout_ms=5000, partitions=[write]) for _ in range(10)]
    read = pb.FetchPartition(topic="quotas-native", max_bytes=600_000)
    fetch = pb.FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=600_000, partitions=[read])
    with grpc.insecure_channel(
        local_cluster.grpc_bootstrap, [("grpc.max_receive_message_length", 1 << 26)]
    ) as channel:
        stub = broker_pb2_grpc.LogStub(channel)  # type: ignore[no-untyped-call]
        for call, requests in ((stub.Produce, asked), (stub.Fetch, [fetch] * 10)):
            began = time.monotonic()
            answers = list(call(iter(requests), metadata=((CLIENT_ID_KEY, "native"),), timeout=60))
            took_s = time.monotonic() - began
            assert len(answers) == 10
            assert not any(each.error.name for answer in answers for each in answer.partitions)
            assert 5_000_000 / (took_s + 1) == pytest.approx(QUOTA, rel=0.15)
