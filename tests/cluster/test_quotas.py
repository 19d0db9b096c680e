"""Quotas with a real broker and stock clients: rates are held, others are not affected, clients are told."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import grpc
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.edge.kafka_batches import batch
from cli.ottla_command import Ottla
from ottla_bench.kafka_jars import KAFKA_CONFIGS, run_tool
from ottla_broker.edge.grpc.callers import CLIENT_ID_KEY
from ottla_broker.edge.kafka import schema
from ottla_broker.edge.kafka.decode import compile_reader
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.versions import APIS
from ottla_cli.local_cluster import LocalCluster
from ottla_core.errors import ThrottlingQuotaExceeded
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc

pytestmark = [pytest.mark.integration, pytest.mark.java]

QUOTA = 2_000_000
VALUE = b"x" * 10_000
CONNECTIONS = 3
#: ApiVersions, version 0, no client id.
VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)


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


@pytest.fixture(scope="module")
def quotas_topic(local_cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": local_cluster.kafka_bootstrap})
    admin.create_topics([NewTopic("quotas", 1, 1)], operation_timeout=20)["quotas"].result(30)


def test_producers_and_consumers_are_held_to_their_quotas(
    local_cluster: LocalCluster, quotas_topic: None, configs: Callable[..., str]
) -> None:
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


def test_defaults_and_addresses_by_kafkas_tool(
    local_cluster: LocalCluster, configs: Callable[..., str]
) -> None:
    both = (
        "--entity-type",
        "users",
        "--entity-name",
        "alice",
        "--entity-type",
        "clients",
        "--entity-default",
    )
    configs("--alter", *both, "--add-config", "producer_byte_rate=1000,request_percentage=12.5")
    shown = configs("--describe", *both)
    assert "request_percentage=12.5" in shown and "producer_byte_rate=1000.0" in shown
    address = ("--entity-type", "ips", "--entity-name", "127.0.0.9")
    configs("--alter", *address, "--add-config", f"connection_creation_rate={CONNECTIONS}")
    assert f"connection_creation_rate={CONNECTIONS}.0" in configs("--describe", *address)

    host, _, port = local_cluster.kafka_bootstrap.partition(":")
    opened = []
    for _ in range(CONNECTIONS + 4):
        opened.append(socket.create_connection((host, int(port)), 10, ("127.0.0.9", 0)))
        opened[-1].sendall(VERSIONS_REQUEST)
    answered, began = 0, time.monotonic()
    for each in opened:
        each.settimeout(10)
        answered += len(each.recv(4)) == 4
        each.close()
    assert answered == CONNECTIONS, "those beyond the rate are closed without an answer"
    assert 0.1 < time.monotonic() - began < 3.0, "and not at once"
    with socket.create_connection((host, int(port)), 10, ("127.0.0.8", 0)) as other:
        other.sendall(VERSIONS_REQUEST)
        assert len(other.recv(4)) == 4


def test_the_command_line_lists_sets_and_deletes(
    local_cluster: LocalCluster, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    ottla = Ottla(local_cluster.grpc_bootstrap, capsysbinary)
    ottla(
        "quotas",
        "set",
        "--user",
        "zoe",
        "--client-id",
        "z",
        "producer_byte_rate=1.5MB",
        "request_percentage=5",
    )
    shown = ottla("quotas", "list", "--user", "zoe", "--json").json
    assert shown == [
        {
            "user": "zoe",
            "client_id": "z",
            "ip": None,
            "quotas": {"producer_byte_rate": 1_500_000.0, "request_percentage": 5.0},
        }
    ]
    assert "1,500,000" in ottla("quotas", "list").out
    ottla("quotas", "delete", "request_percentage", "--user", "zoe", "--client-id", "z", "--yes")
    assert list(ottla("quotas", "list", "--user", "zoe", "--json").json[0]["quotas"]) == [
        "producer_byte_rate"
    ]
    ottla("quotas", "delete", "--user", "zoe", "--client-id", "z", "--yes")
    assert ottla("quotas", "list", "--user", "zoe", "--json").json == []
    wrong = ottla("quotas", "set", "--ip", "10.0.0.7", "producer_byte_rate=1", code=1)
    assert "producer_byte_rate is not a quota of addresses" in wrong.err
    assert "Name an entity" in ottla("quotas", "set", "producer_byte_rate=1", code=2).err


def test_topics_are_made_at_the_rate_of_the_quota(
    local_cluster: LocalCluster, configs: Callable[..., str]
) -> None:
    """A burst of 11 s is allowed. Older requests (librdkafka's) are done and wait; newer ones and the native
    protocol's are refused with the time."""
    configs(
        *("--alter", "--entity-type", "clients", "--entity-name", "maker"),
        *("--add-config", "controller_mutation_rate=4"),
    )
    maker = AdminClient({"bootstrap.servers": local_cluster.kafka_bootstrap, "client.id": "maker"})
    cleaner = AdminClient({"bootstrap.servers": local_cluster.kafka_bootstrap})

    def make(name: str, partitions: int) -> None:
        maker.create_topics([NewTopic(name, partitions, 1)], operation_timeout=20)[name].result(30)

    make("made", 50)  # Overdraws the quota by 6 partitions, 1.5 s.
    began = time.monotonic()
    make("waited", 8)  # Overdraws it by 2 s.
    assert 1.0 < time.monotonic() - began < 5.0
    with grpc.insecure_channel(local_cluster.grpc_bootstrap) as channel:
        admin = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        asked = pb.DeleteTopicsRequest(names=["made"], timeout_ms=5000)
        (native,) = admin.DeleteTopics(asked, metadata=((CLIENT_ID_KEY, "maker"),), timeout=20).topics
        assert native.error.name == "THROTTLING_QUOTA_EXCEEDED"
        assert "try again in" in native.error.message
    api = APIS[19]
    fields = {
        "topics": [{"name": "refused", "num_partitions": 1, "replication_factor": 1}],
        "timeout": 5000,
    }
    body, answer = bytearray(), None
    compile_writer(schema.load(api, 7, "request"))(body, fields)
    host, _, port = local_cluster.kafka_bootstrap.partition(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        head = struct.pack(">hhih5sb", 19, 7, 1, 5, b"maker", 0)
        raw.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        size = struct.unpack(">i", raw.recv(4, socket.MSG_WAITALL))[0]
        data = raw.recv(size, socket.MSG_WAITALL)
        answer = compile_reader(schema.load(api, 7, "response"))(memoryview(data)[5:])
    assert answer["topics"][0]["error_code"] == ThrottlingQuotaExceeded.code
    assert 0 < answer["throttle_time"] <= 2000
    done = cleaner.delete_topics(["made", "waited"], operation_timeout=20)
    assert [each.exception(30) for each in done.values()] == [None, None]


def test_time_of_the_event_loop_is_a_quota(
    local_cluster: LocalCluster, quotas_topic: None, configs: Callable[..., str]
) -> None:
    configs(
        *("--alter", "--entity-type", "clients", "--entity-name", "busy"),
        *("--add-config", "request_percentage=0.5"),
    )
    waits, free = list[float](), list[float]()
    for client_id, told, most in (("busy", waits, 3000), ("idle", free, 100)):
        client = producer(local_cluster, client_id, told)
        # A request takes some tens of microseconds: a fast machine needs more of them to exceed the quota.
        for _ in range(most):
            client.produce("quotas", b"x")
            assert client.flush(30) == 0
            if told:
                break
    assert waits and max(waits) <= 1.0 and not free
    with grpc.insecure_channel(local_cluster.grpc_bootstrap) as channel:
        stub = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        for client_id, least_s in (("idle", 0.0), ("busy", 0.3)):
            began = time.monotonic()
            for _ in range(60):
                stub.Metadata(pb.MetadataRequest(), metadata=((CLIENT_ID_KEY, client_id),), timeout=20)
            assert time.monotonic() - began > least_s


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
