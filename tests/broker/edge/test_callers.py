"""Both edges make a caller and use the services through it; each API declares the rights it needs."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc import aio

from broker.edge.fakes import FakeBroker
from broker.edge.kafka_peer import Peer
from client.fake_services import FakeCluster
from ottla_broker.caller import ANONYMOUS, BROKER, Caller
from ottla_broker.edge import needs
from ottla_broker.edge.grpc.callers import CLIENT_ID_KEY, address_of, caller_of
from ottla_broker.edge.grpc.server import served
from ottla_broker.edge.kafka import registry
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.service.services import Services
from ottla_core.pb import broker_pb2 as pb
from ottla_core.pb import broker_pb2_grpc

OPERATIONS = {"Read", "Write", "Create", "Delete", "Alter", "Describe"} | {
    "DescribeConfigs",
    "AlterConfigs",
    "IdempotentWrite",
    "ClusterAction",
}


def test_each_kafka_api_declares_its_rights() -> None:
    names = {api.name for api in APIS.values()}
    assert names == needs.KAFKA.keys(), "edge/needs.py needs one row for each API in versions.py"
    assert [key for key in APIS if not registry.entry(key).needs] == [17, 18, 36], (
        "only ApiVersions and logins need no right"
    )


def test_each_grpc_method_declares_its_rights() -> None:
    assert served() == needs.GRPC.keys(), "edge/needs.py needs one row for each gRPC method"
    assert all(needs.GRPC.values())


def test_rights_are_kafkas() -> None:
    declared = {need for row in (*needs.KAFKA.values(), *needs.GRPC.values()) for need in row}
    assert {need.operation for need in declared} <= OPERATIONS
    assert {need.resource for need in declared} <= {"Topic", "Group", "Cluster", "TransactionalId"}


def test_services_are_seen_by_a_caller() -> None:
    parts: list[Any] = [SimpleNamespace() for _ in range(16)]
    services = Services(*parts)
    caller = Caller(ANONYMOUS, "me", "10.0.0.7", "EXTERNAL")
    seen = services.of(caller)
    assert (services.caller, seen.caller) == (BROKER, caller)
    assert seen.records is services.records
    with pytest.raises(FrozenInstanceError):
        cast(Any, caller).principal = "User:admin"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1"),
        ("ipv6:%5B::1%5D:50000", "::1"),
        ("ipv6:[::1]:50000", "::1"),
        ("unix:", ""),
    ],
)
def test_address_of_a_grpc_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_client_id_of_a_grpc_call_is_bounded() -> None:
    context = SimpleNamespace(
        peer=lambda: "ipv4:10.0.0.7:1", invocation_metadata=lambda: ((CLIENT_ID_KEY, "x" * 5000),)
    )
    assert caller_of(context, "grpc") == Caller(ANONYMOUS, "x" * 256, "10.0.0.7", "grpc")


async def test_a_kafka_connection_has_one_caller_per_client_id() -> None:
    async with FakeBroker() as broker:
        peer = await Peer.connect(broker.port)
        await peer.ask(18, 0)
        caller = broker.services.caller
        assert caller == Caller(ANONYMOUS, "peer", "127.0.0.1", "kafka")
        await peer.ask(18, 0)
        assert broker.services.caller is caller, "no caller is made for a second request"
        peer.close()


async def test_a_grpc_call_has_a_caller() -> None:
    async with (
        FakeCluster() as cluster,
        aio.insecure_channel(cluster.brokers[0].address) as channel,
    ):
        admin = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        await admin.Metadata(pb.MetadataRequest(), metadata=((CLIENT_ID_KEY, "me"),))
        assert cluster.brokers[0].caller == Caller(ANONYMOUS, "me", "127.0.0.1", "grpc")
