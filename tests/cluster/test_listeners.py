"""Two brokers with two Kafka and two gRPC listeners each: every client gets the addresses of its own listener."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla_cli.local_cluster import LocalCluster
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc

pytestmark = pytest.mark.integration

SETTINGS = {
    "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "advertised.listeners": "OUTSIDE://localhost:0",
    "grpc.listeners": "NATIVE://127.0.0.1:0,FAR://127.0.0.1:0",
    "advertised.grpc.listeners": "FAR://localhost:0",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,NATIVE:PLAINTEXT,FAR:PLAINTEXT",
}


def read_all(bootstrap: str, group: str) -> set[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found: set[int] = set()
    deadline = time.monotonic() + 60
    while len(found) < 40 and time.monotonic() < deadline:
        found |= {
            int(message.value() or b"-1")
            for message in consumer.consume(40, timeout=1)
            if not message.error()
        }
    consumer.close()
    return found


def test_each_client_stays_on_its_listener(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(brokers=2, settings=SETTINGS)
    ready = [json.loads(Path(cluster.folder.file(f"broker-{i}.ready")).read_text()) for i in range(2)]
    inside = {facts["kafka"] for facts in ready}
    outside = {facts["listener.OUTSIDE"].replace("127.0.0.1", "localhost") for facts in ready}
    assert len(inside | outside) == 4

    admin = AdminClient({"bootstrap.servers": ",".join(inside)})
    for created in admin.create_topics([NewTopic("t", 4, 2)], operation_timeout=20).values():
        created.result(timeout=30)
    listed = admin.list_topics(timeout=20).brokers.values()
    assert {f"{broker.host}:{broker.port}" for broker in listed} == inside
    described = admin.describe_cluster(request_timeout=20).result()
    assert {f"{node.host}:{node.port}" for node in described.nodes} == inside

    producer = Producer({"bootstrap.servers": next(iter(outside)), "acks": "all"})
    for number in range(40):
        producer.produce("t", str(number), partition=number % 4)
    assert producer.flush(30) == 0
    listed = producer.list_topics(timeout=20).brokers.values()
    assert {f"{broker.host}:{broker.port}" for broker in listed} == outside

    # Each group finds its coordinator on its own listener.
    assert read_all(next(iter(inside)), "in") == read_all(next(iter(outside)), "out") == set(range(40))

    for address, host in ((ready[0]["grpc"], "127.0.0.1"), (ready[0]["listener.FAR"], "localhost")):
        with grpc.insecure_channel(address) as channel:
            stub = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            brokers = stub.Metadata(pb.MetadataRequest(), timeout=20).brokers
        assert {broker.host for broker in brokers} == {host}
        assert address in {f"127.0.0.1:{broker.port}" for broker in brokers}
