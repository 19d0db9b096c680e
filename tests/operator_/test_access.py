"""Access to a Cluster: which listeners a spec gives, phases of TLS between brokers, when certificates are renewed."""

from __future__ import annotations

import ssl
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from operator_.bodies import cluster
from operator_.twins import World
from ottla_operator.certificate_maker import Pair, common_name, issue, make_ca, read
from ottla_operator.certificate_plan import Held, Wanted, replaces, why_new_ca, why_renew
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.clusters import ClusterLook
from ottla_operator.internal_tls import OFF, ON, PHASE, PREPARED, next_phase
from ottla_operator.kube import KubeError
from ottla_operator.network_policy import policies
from ottla_operator.pod_parts import Images
from ottla_operator.resources import broker_settings
from ottla_operator.specs import InvalidSpec, Meta

DAY = 86_400.0
EXTERNAL = {"type": "NodePort", "advertisedHost": "node.example.com", "nodePort": 31090}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"listeners": {"plaintext": {"enabled": False}}}, "clients need listeners.tls or"),
        (
            {
                "listeners": {
                    "tls": {"authentication": "none"},
                    "external": {**EXTERNAL, "authentication": "tls"},
                }
            },
            "one ssl.client.auth",
        ),
        ({"authorization": {}, "config": {"authorizer.class.name": "x"}}, "use one"),
        ({"config": {"internal.ssl.server.name": "x"}}, "which the operator sets itself"),
    ],
    ids=str,
)
def test_contradictions_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        ClusterSpec.of(cluster(**spec))


def test_an_authoriser_of_the_config_alone_needs_no_rights_on_secrets() -> None:
    name = "authorizer.class.name"
    config = {
        name: "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    for listeners, users in ((None, "User:ANONYMOUS"), ({"tls": {}}, "User:ottla-operator;User:ANONYMOUS")):
        body = cluster(config=config, **({"listeners": listeners} if listeners else {}))
        spec = ClusterSpec.of(body)
        assert spec.access.is_secured == (listeners is not None)
        assert broker_settings(Meta.of(body), spec)["super.users"] == users


def test_tls_between_brokers_goes_through_a_phase_in_both_directions() -> None:
    def walk(wanted: bool, phase: str) -> list[str]:
        seen = [phase]
        for _ in range(5):
            assert next_phase(wanted, PREPARED, rolled=False) == PREPARED, (
                "not before all pods have certificates"
            )
            phase = next_phase(wanted, phase, rolled=True)
            seen.append(phase)
        return list(dict.fromkeys(seen))

    assert walk(True, OFF) == [OFF, PREPARED, ON]
    assert walk(False, ON) == [ON, PREPARED, OFF]
    assert (next_phase(True, None, rolled=False), next_phase(False, None, rolled=False)) == (ON, OFF)


def test_when_certificates_are_renewed() -> None:
    held = Held(0.0, 365 * DAY, "ca", "own", "main", ("a", "b"))
    wanted = Wanted("main", ("a",))
    assert why_renew(held, wanted, ["ca"], 200 * DAY) is None
    assert why_renew(held, wanted, ["ca"], 250 * DAY) == "It ends in 115 days."
    assert why_renew(held, Wanted("main", ("a", "c")), ["ca"], DAY) == "Its names changed."
    assert why_renew(held, wanted, ["next"], DAY) == "Its CA was replaced."
    assert why_renew(None, wanted, ["ca"], DAY) == "There is none."
    ca = Held(0.0, 3650 * DAY, "ca", "ca", "main-ca")
    assert why_new_ca(ca, 2000 * DAY) is None
    assert why_new_ca(ca, 2500 * DAY) is not None
    assert not replaces(ca, DAY) and replaces(ca, 8 * DAY), "clients need time to read a new CA"


def _handshake(server: Pair, client: Pair | None, trusted: bytes, folder: Path, name: str) -> str:
    """The common name that the server sees; both ends are checked, in memory."""
    contexts = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    contexts[1].verify_flags |= ssl.VERIFY_X509_STRICT
    for context, pair in zip(contexts, (server, client), strict=True):
        context.load_verify_locations(cadata=trusted.decode())
        if pair is not None:
            path = folder / "pair.pem"
            path.write_bytes(pair.key + pair.certificate)
            context.load_cert_chain(path)
    contexts[0].verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        contexts[1].wrap_bio(to_client, to_server, server_hostname=name),
        contexts[0].wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found: Any = ends[1].getpeercert()
    return str(dict(part[0] for part in found["subject"])["commonName"])


def test_certificates_work_with_strict_verification(tmp_path: Path) -> None:
    now = time.time()
    ca, other = make_ca("main-ca", now), make_ca("other-ca", now)
    broker = issue(ca, Wanted("main-brokers", ("main-bootstrap.shop.svc", "127.0.0.1")), now, server=True)
    alice = issue(ca, Wanted("alice"), now, server=False)
    assert _handshake(broker, alice, ca.certificate, tmp_path, "main-bootstrap.shop.svc") == "alice"
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(broker, alice, ca.certificate, tmp_path, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger = issue(other, Wanted("main-brokers", ("localhost",)), now, server=True)
        _handshake(stranger, alice, ca.certificate, tmp_path, "localhost")
    held, authority = read(broker.certificate), read(ca.certificate)
    assert held is not None and authority is not None and held.authority == authority.key
    assert held.hosts == ("main-bootstrap.shop.svc", "127.0.0.1")
    assert read(b"nonsense") is None
    assert len(common_name("x" * 100)) == 64


def test_only_brokers_reach_the_internal_listener() -> None:
    body = cluster(listeners={"tls": {}}, networkPolicy={"enabled": True})
    broker, etcd = policies(Meta.of(body), ClusterSpec.of(body).access, etcd=True)
    rows = {port["port"]: rule.get("from") for rule in broker["spec"]["ingress"] for port in rule["ports"]}
    component = "app.kubernetes.io/component"
    assert rows[9392][0]["podSelector"]["matchLabels"][component] == "broker"
    assert rows[9195][0]["podSelector"]["matchLabels"][component] == "operator"
    assert all(rows[port] is None for port in (9092, 9192, 9093, 9193, 9292))
    assert {port["port"] for rule in etcd["spec"]["ingress"] for port in rule["ports"]} == {2379, 2380}


# ------------------------------------------------------------------ the look at a Cluster

IMAGES = Images("broker:1", "etcd:1")


def _roll(world: World) -> None:
    """What the StatefulSet controller and the kubelet do: pods of the current template, all ready."""
    found = world.kube.find("StatefulSet", "main-broker")
    found["metadata"]["generation"] = 1
    found["status"] = {"updateRevision": "r", "observedGeneration": 1}
    for number in range(found["spec"]["replicas"]):
        labels = {**found["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": "r"}
        name = f"main-broker-{number}"
        about = {"name": name, "namespace": "shop", "uid": name, "labels": labels}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        world.kube.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": status})


async def test_a_running_cluster_gets_tls_between_its_brokers_in_two_steps() -> None:
    world = World()
    look = ClusterLook(world.tools, IMAGES)
    key = world.put(cluster())

    async def phase(*, rolled: bool) -> tuple[str, str]:
        if rolled:
            _roll(world)
        world.clock.now += 60
        await look.look(key)
        found = world.kube.find("StatefulSet", "main-broker")["metadata"].get("annotations", {})
        text = world.kube.find("ConfigMap", "main-config")["data"]["ottla.properties"]
        settings = dict(line.split("=", 1) for line in text.splitlines())
        return found.get(PHASE, OFF), settings.get("internal.security.protocol", "")

    assert await phase(rolled=False) == (OFF, "")
    _roll(world)
    spec = {"listeners": {"internal": {"tls": True}}}
    changed = cluster(**spec)
    changed["metadata"]["generation"] = 2
    world.put(changed)
    assert await phase(rolled=False) == (PREPARED, "PLAINTEXT")
    pod = world.kube.find("Pod", "main-broker-1")
    pod["metadata"]["labels"]["controller-revision-hash"] = "old"
    assert await phase(rolled=False) == (PREPARED, "PLAINTEXT"), "one broker has no certificate yet"
    assert await phase(rolled=True) == (ON, "SSL")
    certificate = b64decode(world.kube.find("Secret", "main-broker-tls")["data"]["tls.crt"])
    held = read(certificate)
    assert held is not None and "main-brokers.shop.svc" in held.hosts
    assert len([each for each in world.kube.events if each[0] == "CertificateMade"]) == 2, (
        "a CA and a certificate"
    )


async def test_without_rights_on_secrets_nothing_is_changed_and_the_condition_says_what_to_allow() -> None:
    world = World()
    key = world.put(cluster(listeners={"tls": {}}))
    before = world.kube.get

    async def get(path: str) -> Any:
        if "/secrets/" in path:
            raise KubeError(403, "secrets is forbidden.")
        return await before(path)

    world.kube.get = get  # type: ignore[method-assign]
    await ClusterLook(world.tools, IMAGES).look(key)
    assert world.condition("Cluster", "main") == ("False", "Forbidden")
    rows = world.status("Cluster", "main")["conditions"]
    assert "operator.secrets=true" in rows[0]["message"]
    assert not any("statefulsets" in path for path in world.kube.objects)
