"""External listeners: node ports for any number of brokers, and addresses that load balancers were given."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest

from operator_.bodies import cluster
from operator_.twins import World
from ottla_broker.config import resolve
from ottla_broker.listeners import listeners_of
from ottla_operator.certificate_maker import read
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.clusters import ClusterLook
from ottla_operator.pod_parts import Images
from ottla_operator.resources import CONFIG_HASH, config_map, objects_of
from ottla_operator.specs import InvalidSpec, Meta

IMAGES = Images("broker:1", "etcd:1")
NODES = {"type": "NodePort", "advertisedHost": "node.example.com", "nodePort": 31095, "grpcNodePort": 31195}
BALANCED = {"type": "LoadBalancer"}


def files(brokers: int, external: dict[str, Any]) -> dict[str, str]:
    body = cluster(brokers=brokers, listeners={"external": external})
    made = config_map(Meta.of(body), ClusterSpec.of(body))
    found: dict[str, str] = made["data"]
    return found


def advertised(text: str) -> dict[str, str]:
    config = resolve(
        {}, {"OTTLA_INTERNAL_ADVERTISED": "10.0.0.7:9392"}, text, file_name="b.properties"
    ).config
    return {each.name: str(each.advertised) for each in listeners_of(config)}


def test_node_ports_of_more_than_ten_brokers_that_begin_anywhere() -> None:
    made = files(12, NODES)
    last = advertised(made["broker-11.properties"])
    assert (last["kafkaext"], last["grpcext"]) == ("node.example.com:31106", "node.example.com:31206")
    assert last["kafka"] == "main-broker-11.shop.svc:9092"
    assert advertised(made["broker-0.properties"])["kafkaext"] == "node.example.com:31095"
    body = cluster(brokers=12, listeners={"external": NODES})
    services = objects_of(Meta.of(body), ClusterSpec.of(body), IMAGES)
    (service,) = [each for each in services if each["metadata"]["name"] == "main-broker-11-external"]
    assert {port["nodePort"] for port in service["spec"]["ports"]} == {31106, 31206}


def test_a_broker_reads_its_own_file() -> None:
    body = cluster(listeners={"external": NODES})
    found = next(
        each
        for each in objects_of(Meta.of(body), ClusterSpec.of(body), IMAGES)
        if each["metadata"]["name"] == "main-broker" and each["kind"] == "StatefulSet"
    )
    (container,) = found["spec"]["template"]["spec"]["containers"]
    names = [each["name"] for each in container["env"]]
    environ = {each["name"]: each.get("value") for each in container["env"]}
    assert environ["OTTLA_CONFIG"] == "/etc/ottla/broker-$(OTTLA_BROKER_ID).properties"
    assert names.index("OTTLA_BROKER_ID") < names.index("OTTLA_CONFIG"), "or it would not be replaced"
    assert not any("ADVERTISED" in name and name != "OTTLA_INTERNAL_ADVERTISED" for name in names), (
        "variables win over files"
    )


@pytest.mark.parametrize(
    ("brokers", "more", "message"),
    [
        (3, {"grpcNodePort": 31097}, "overlap"),
        (3, {"nodePort": 65534}, "above 65535"),
        (3, {"advertisedHost": ""}, "needs nodePort and advertisedHost"),
        (3, {"type": "LoadBalancer"}, "needs {id}"),
    ],
)
def test_ports_and_hosts_that_cannot_work(brokers: int, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        ClusterSpec.of(cluster(brokers=brokers, listeners={"external": {**NODES, **more}}))


# ------------------------------------------------------------------ load balancers


def balance(world: World, broker: int, **address: str) -> None:
    service = world.kube.find("Service", f"main-broker-{broker}-external")
    service["status"] = {"loadBalancer": {"ingress": [address]}}


def hash_of(world: World) -> str:
    template = world.kube.find("StatefulSet", "main-broker")["spec"]["template"]
    return str(template["metadata"]["annotations"][CONFIG_HASH])


async def test_addresses_of_load_balancers_are_found() -> None:
    world = World()
    look = ClusterLook(world.tools, IMAGES)
    key = world.put(cluster(brokers=2, listeners={"external": BALANCED}))
    assert await look.look(key) == 2.0
    assert world.condition("Cluster", "main") == ("False", "NoAddress")
    assert (
        "main-broker-0-external has no address" in world.status("Cluster", "main")["conditions"][0]["message"]
    )
    assert list(world.kube.find("ConfigMap", "main-config")["data"]) == ["ottla.properties"]
    before = hash_of(world)

    balance(world, 0, ip="203.0.113.7")
    await look.look(key)
    assert world.condition("Cluster", "main") == ("False", "NoAddress"), "the other one"
    balance(world, 1, hostname="one.elb.example.com")
    await look.look(key)
    assert world.condition("Cluster", "main") == ("False", "Starting")
    data = world.kube.find("ConfigMap", "main-config")["data"]
    assert advertised(data["broker-0.properties"])["kafkaext"] == "203.0.113.7:9094"
    assert advertised(data["broker-1.properties"])["grpcext"] == "one.elb.example.com:9194"
    assert hash_of(world) == before, "the address of one broker restarts no other"
    status = world.status("Cluster", "main")
    assert status["bootstrap"]["kafkaExternal"] == "203.0.113.7:9094,one.elb.example.com:9094"
    held = read(b64decode(world.kube.find("Secret", "main-broker-tls")["data"]["tls.crt"]))
    assert held is not None and {"203.0.113.7", "one.elb.example.com"} <= set(held.hosts)
    assert "DriftRepaired" not in [reason for reason, _ in world.kube.events]


async def test_an_address_stays_until_there_is_another() -> None:
    world = World()
    look = ClusterLook(world.tools, IMAGES)
    key = world.put(cluster(brokers=1, listeners={"external": BALANCED}))
    await look.look(key)
    for given, expected in (
        ("203.0.113.7", "203.0.113.7"),
        ("", "203.0.113.7"),
        ("203.0.113.8", "203.0.113.8"),
    ):
        balance(world, 0, ip=given)
        await look.look(key)
        assert world.condition("Cluster", "main") == ("False", "Starting")
        assert world.status("Cluster", "main")["bootstrap"]["kafkaExternal"] == f"{expected}:9094"


async def test_a_paused_cluster_keeps_its_addresses() -> None:
    world = World()
    look = ClusterLook(world.tools, IMAGES)
    body = cluster(brokers=1, listeners={"external": BALANCED})
    key = world.put(body)
    await look.look(key)
    balance(world, 0, ip="203.0.113.7")
    await look.look(key)
    body["metadata"]["annotations"] = {"ottla.dev/paused": "true"}
    world.put(body)
    await look.look(key)
    assert world.condition("Cluster", "main") == ("False", "Starting")
    assert world.status("Cluster", "main")["bootstrap"]["kafkaExternal"] == "203.0.113.7:9094"


async def test_a_broker_that_is_drained_keeps_its_address() -> None:
    world = World()
    look = ClusterLook(world.tools, IMAGES)
    key = world.put(cluster(brokers=2, listeners={"external": BALANCED}))
    await look.look(key)
    for broker in range(2):
        balance(world, broker, ip=f"203.0.113.{broker}")
    await look.look(key)
    body = cluster(brokers=1, listeners={"external": BALANCED})
    body["metadata"]["generation"] = 2
    body["status"] = {**world.status("Cluster", "main"), "brokers": [{"id": 0}, {"id": 1}]}
    world.put(body)
    world.links.brokers = None  # so it stays
    await look.look(key)
    assert "broker-1.properties" in world.kube.find("ConfigMap", "main-config")["data"]


async def test_an_ipv6_address_has_brackets() -> None:
    world = World()
    look = ClusterLook(world.tools, IMAGES)
    key = world.put(cluster(brokers=1, listeners={"external": BALANCED}))
    await look.look(key)
    balance(world, 0, ip="2001:db8::7")
    await look.look(key)
    assert (
        "kafkaext://[2001:db8::7]:9094"
        in world.kube.find("ConfigMap", "main-config")["data"]["broker-0.properties"]
    )
    assert world.status("Cluster", "main")["bootstrap"]["kafkaExternal"] == "[2001:db8::7]:9094"
