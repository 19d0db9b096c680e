"""Listeners from settings: names, addresses, security protocols, and every contradiction refused."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla_broker.config import BrokerConfig, resolve
from ottla_broker.edge.seats import Addresses, Seats
from ottla_broker.listeners import listeners_of
from ottla_broker.metadata.image import BrokerImage, Endpoint
from ottla_broker.setting import Address, ConfigError


def test_without_lists_each_protocol_has_one_listener() -> None:
    made = listeners_of(
        BrokerConfig.of({"kafka.listener": "inside://127.0.0.1:1", "kafka.advertised": "b:0"})
    )
    assert [(each.name, each.protocol) for each in made] == [
        ("inside", "kafka"),
        ("grpc", "grpc"),
        ("internal", "internal"),
    ]
    assert made[0].endpoint(1) == Address("b", 1)
    assert {each.security for each in made} == {"PLAINTEXT"}


def test_lists_replace_the_single_listeners() -> None:
    resolved = resolve(
        {
            "kafka.listener": "127.0.0.1:1",
            "listeners": "PLAINTEXT://127.0.0.1:0, EXTERNAL://:9094",
            "advertised.listeners": "EXTERNAL://kafka.example:0",
            "grpc.listeners": "NATIVE://[::1]:9192",
            "listener.security.protocol.map": "EXTERNAL:PLAINTEXT,NATIVE:PLAINTEXT",
        },
        {},
        None,
    )
    assert resolved.warnings == ("kafka.listener is ignored, because listeners is set.",)
    plain, external, native, internal = listeners_of(resolved.config)
    assert (plain.bind, plain.advertised, plain.endpoint(7)) == (
        Address("127.0.0.1", 0),
        None,
        Address("127.0.0.1", 7),
    )
    assert (external.bind, external.endpoint(9094)) == (
        Address("0.0.0.0", 9094),
        Address("kafka.example", 9094),
    )
    assert (native.protocol, native.bind, internal.protocol) == ("grpc", Address("::1", 9192), "internal")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"listeners": "EXTERNAL://h:1"}, "EXTERNAL has no security protocol"),
        ({"listeners": "PLAINTEXT://:1"}, "advertised.listeners must be set"),
        ({"grpc.listeners": "PLAINTEXT://:1"}, "advertised.grpc.listeners must be set"),
        ({"kafka.listener": "0.0.0.0:1"}, "kafka.advertised must be set"),
        ({"internal.listener": "0.0.0.0:1"}, "internal.advertised must be set to an address other brokers"),
        (
            {"listeners": "PLAINTEXT://h:1", "advertised.listeners": "OTHER://h:1"},
            "advertised.listeners names OTHER",
        ),
        ({"advertised.listeners": "PLAINTEXT://h:1"}, "needs listeners"),
        ({"listener.security.protocol.map": "OTHER:PLAINTEXT"}, "no listener has that name"),
        (
            {"listeners": "PLAINTEXT://h:1", "grpc.listeners": "PLAINTEXT://h:2"},
            "both have a listener PLAINTEXT",
        ),
        ({"listeners": "PLAINTEXT://h:1", "http.listener": "h:1"}, "cannot both be h:1"),
        ({"listeners": "h:1"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "different names"),
        ({"listener.security.protocol.map": "kafka:NONE"}, "NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "kafka"}, "NAME:PROTOCOL"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        BrokerConfig.of(settings)


def test_an_endpoint_is_found_by_its_listener() -> None:
    inside, outside = Endpoint("IN", "kafka", "in", 1), Endpoint("OUT", "kafka", "out", 2)
    native = Endpoint("grpc", "grpc", "native", 3)
    broker = BrokerImage(0, UUID(int=1), (inside, outside, native))
    assert broker.endpoint("kafka") == broker.endpoint("kafka", "IN") == inside
    assert broker.endpoint("kafka", "OUT") == outside
    assert broker.endpoint("kafka", "GONE") is None, (
        "an address of another listener may need other credentials"
    )
    assert broker.endpoint("grpc") == broker.endpoint("grpc", "grpc") == native
    assert broker.endpoint("grpc", "NATIVE_SSL") is None, (
        "also if it has one listener only: this one may be plaintext"
    )


def test_one_address_has_a_bound_over_all_listeners() -> None:
    addresses = Addresses(2, {"10.0.0.9": 0, "::1": 3})
    inside, outside = Seats(3, addresses), Seats(3, addresses)
    assert [inside.take("10.0.0.7"), outside.take("10.0.0.7"), outside.take("::ffff:10.0.0.7")] == [
        True,
        True,
        False,
    ]
    assert not inside.take("10.0.0.9")
    assert [inside.take("::1") for _ in range(3)] == [True, True, False], "the listener has no more"
    assert (inside.taken, outside.taken) == (3, 1)
    outside.leave("10.0.0.7")
    assert outside.take("10.0.0.7")
    for seats, address in ((inside, "10.0.0.7"), (outside, "10.0.0.7"), (inside, "::1"), (inside, "::1")):
        seats.leave(address)
    assert addresses._taken == {} and inside.taken == outside.taken == 0


def test_bounds_of_addresses_are_settings() -> None:
    given = {
        "max.connections.per.ip": "5",
        "max.connections.per.ip.overrides": "10.0.0.7:100,[2001:db8::01]:0",
    }
    kafka = BrokerConfig.of(given).kafka
    assert kafka.connections_max_per_ip == 5
    assert kafka.connections_max_of_ips == (("10.0.0.7", 100), ("2001:db8::1", 0))
    assert BrokerConfig.of({}).kafka.connections_max_of_ips == ()
    for wrong in ("host:1", "10.0.0.7", "10.0.0.7:x", "10.0.0.7:1,10.0.0.7:2"):
        with pytest.raises(ConfigError, match=r"address:count"):
            BrokerConfig.of({"max.connections.per.ip.overrides": wrong})
