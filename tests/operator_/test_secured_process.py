"""A secured Cluster against a real kube-apiserver and a real broker: its certificates, the operator's login, Users."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from operator_.api_server import OPERATOR, OPERATOR_USER, ApiError, ApiServer, find_program, path_of
from operator_.bodies import body, cluster, topic
from operator_.test_operator_process import Operator
from ottla_cli.free_ports import free_ports
from ottla_cli.local_cluster import LocalCluster
from ottla_client import Security
from ottla_client.acl_admin import AclFilter
from ottla_client.quota_admin import QuotaEntity
from ottla_client.sync import Admin
from ottla_core.errors import ResourceNotFound

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        find_program() is None, reason="no kube-apiserver on this machine; `make e2e` builds one"
    ),
]
HOME, TENANT, STRANGER = "vault", "tenant", "stranger"
WRITE = {"resourceType": "TOPIC", "name": "orders", "operations": ["WRITE"]}
SPEC = {
    "brokers": 1,
    "listeners": {
        "plaintext": {"enabled": False},
        "internal": {"tls": True},
        "tls": {"authentication": "tls"},
        "external": {
            "type": "LoadBalancer",
            "authentication": "scram",
            "advertisedHost": "broker-{id}.example.com",
        },
    },
    "authorization": {"superUsers": ["root"]},
    "networkPolicy": {"enabled": True},
    "allowedNamespaces": [TENANT],
}


def until(holds: Callable[[], Any], what: Callable[[], object] = lambda: "", timeout_s: float = 30) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)
    return found


class Vault:
    """The namespaces, an operator with rights on their Secrets, and a broker with the settings that it writes."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.api, self._folder = api, folder
        for name in (HOME, TENANT, STRANGER):
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            self._allow_secrets(name)
        self.kafka, self.kafka_tls, grpc = free_ports(3)
        self.operator = Operator(
            api, f"localhost:{grpc}", folder, OPERATOR, ",".join((HOME, TENANT, STRANGER))
        )
        self.apply(cluster(**SPEC), HOME)
        until(lambda: self.read("ConfigMap", "main-config", HOME, "v1"), self.log)
        until(lambda: self.secret("main-broker-tls", HOME), self.log)
        self.broker = LocalCluster(settings=self._settings(grpc))
        self.broker.start()
        self.security = Security(
            "SASL_SSL",
            ssl_ca_location=str(folder / "ca.crt"),
            sasl_username="ottla-operator",
            sasl_password=self.secret("main-operator", HOME)["password"].decode(),
        )
        self.grpc = f"localhost:{grpc}"

    def _allow_secrets(self, namespace: str) -> None:
        """What `operator.secrets` adds to the chart's rights."""
        about = {"name": "secrets", "namespace": namespace}
        group = "rbac.authorization.k8s.io"
        rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch"]}
        self.api.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": about, "rules": [rule]})
        self.api.apply(
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": about,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "secrets"},
                "subjects": [{"apiGroup": group, "kind": "User", "name": OPERATOR_USER}],
            }
        )

    def _settings(self, grpc: int) -> dict[str, str]:
        """Of the ConfigMap, with files and ports of this machine."""
        text = self.read("ConfigMap", "main-config", HOME, "v1")["data"]["ottla.properties"]
        found = dict(line.split("=", 1) for line in text.splitlines())
        for name, secret in (
            ("peer-tls", "main-broker-tls"),
            ("tls", "main-broker-tls"),
            ("operator", "main-operator"),
            ("client-ca", "main-clients-ca-cert"),
        ):
            (self._folder / name).mkdir()
            for key, content in self.secret(secret, HOME).items():
                (self._folder / name / key).write_bytes(content)
        (self._folder / "ca.crt").write_bytes(self.secret("main-ca-cert", HOME)["ca.crt"])
        kept = {
            name: value.replace("/etc/ottla-", f"{self._folder}/")
            for name, value in found.items()
            if name.startswith(
                ("ssl.", "internal.ssl.", "internal.security", "sasl.", "super.", "authorizer.")
            )
        }
        return kept | {
            "listeners": f"kafkatls://127.0.0.1:{self.kafka_tls},kafkaext://127.0.0.1:{self.kafka}",
            "grpc.listeners": f"operator://127.0.0.1:{grpc}",
            "advertised.listeners": f"kafkatls://localhost:{self.kafka_tls},kafkaext://localhost:{self.kafka}",
            "advertised.grpc.listeners": f"operator://localhost:{grpc}",
            "listener.security.protocol.map": "kafkatls:SSL,kafkaext:SASL_SSL,operator:SASL_SSL",
        }

    def apply(self, document: dict[str, Any], namespace: str) -> None:
        meta = {"name": document["metadata"]["name"], "namespace": namespace}
        self.api.apply({**document, "metadata": meta})

    def read(
        self, kind: str, name: str, namespace: str, version: str = "ottla.dev/v1alpha1"
    ) -> dict[str, Any]:
        try:
            made = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
            found: dict[str, Any] = self.api.request("GET", path_of(made, namespace))
        except ApiError as failed:
            if failed.code != 404:
                raise
            return {}
        return found

    def secret(self, name: str, namespace: str) -> dict[str, bytes]:
        found = self.read("Secret", name, namespace, "v1").get("data") or {}
        return {key: b64decode(text) for key, text in found.items()}

    def ready(self, kind: str, name: str, namespace: str) -> tuple[str, str] | None:
        rows = (self.read(kind, name, namespace).get("status") or {}).get("conditions") or ()
        return next(((row["status"], row["reason"]) for row in rows if row["type"] == "Ready"), None)

    def delete(self, kind: str, name: str, namespace: str) -> None:
        made = {"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
        self.api.request("DELETE", path_of(made, namespace))

    def log(self) -> str:
        return self.operator.log.read_text()[-4000:]

    def stop(self) -> None:
        self.delete("Cluster", "main", HOME)
        self.operator.end()
        self.broker.stop()


@pytest.fixture(scope="module")
def vault(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    made = Vault(api, tmp_path_factory.mktemp("vault"))
    yield made
    made.stop()
    assert "Traceback" not in made.operator.log.read_text(), made.log()


def produce(vault: Vault, password: str, topic_name: str = "orders", timeout_ms: int = 5000) -> str:
    """Write a record as alice, with a stock client; the error's name, if any."""
    trusted = vault._folder / "alice-ca.crt"
    trusted.write_bytes(vault.secret("alice-credentials", TENANT).get("ca.crt", b""))
    login = {
        "bootstrap.servers": f"localhost:{vault.kafka}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": password,
    }
    return _write_one({**login, "ssl.ca.location": str(trusted)}, topic_name, timeout_ms)


def _write_one(settings: dict[str, str], topic_name: str, timeout_ms: int = 5000) -> str:
    producer = Producer(settings | {"message.timeout.ms": str(timeout_ms)})
    failed: list[str] = []
    try:
        producer.produce(topic_name, b"x", on_delivery=lambda error, _: error and failed.append(error.name()))
    except KafkaException as refused:
        return str(refused.args[0].name())
    producer.flush(10)
    return failed[0] if failed else ""


def test_the_address_of_a_load_balancer_is_advertised(vault: Vault) -> None:
    """No cloud runs here: the test writes the status of the Service."""
    vault.apply(cluster("outside", brokers=1, listeners={"external": {"type": "LoadBalancer"}}), HOME)
    until(lambda: vault.ready("Cluster", "outside", HOME) == ("False", "NoAddress"), vault.log)
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}
    path = f"/api/v1/namespaces/{HOME}/services/outside-broker-0-external/status"
    vault.api.request("PATCH", path, status, kind="merge-patch+json")

    def text() -> str:
        data = vault.read("ConfigMap", "outside-config", HOME, "v1").get("data") or {}
        return str(data.get("broker-0.properties", ""))

    until(lambda: "kafkaext://203.0.113.7:9094" in text(), vault.log)
    until(lambda: vault.ready("Cluster", "outside", HOME) == ("False", "Starting"), vault.log)
    seen = vault.read("Cluster", "outside", HOME)["status"]["bootstrap"]
    assert seen["kafkaExternal"] == "203.0.113.7:9094"
    vault.delete("Cluster", "outside", HOME)


def test_a_user_with_a_client_certificate(vault: Vault) -> None:
    vault.apply(topic("orders", partitions=1), HOME)
    until(lambda: vault.ready("Topic", "orders", HOME) == ("True", "Reconciled"), vault.log)
    spec = {"cluster": {"name": "main"}, "authentication": {"type": "tls"}, "acls": [WRITE]}
    vault.apply(body("User", "bob", spec), HOME)
    until(lambda: vault.ready("User", "bob", HOME) == ("True", "Reconciled"), vault.log)
    files = {key: vault._folder / f"bob-{key}" for key in ("tls.crt", "tls.key", "ca.crt")}
    for key, path in files.items():
        path.write_bytes(vault.secret("bob-credentials", HOME)[key])
    settings = {
        "bootstrap.servers": f"localhost:{vault.kafka_tls}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(files["ca.crt"]),
        "ssl.certificate.location": str(files["tls.crt"]),
        "ssl.key.location": str(files["tls.key"]),
    }
    assert _write_one(settings, "orders") == ""
    assert _write_one(settings, "other") == "TOPIC_AUTHORIZATION_FAILED"
    vault.delete("User", "bob", HOME)
    until(lambda: _write_one(settings, "orders") == "TOPIC_AUTHORIZATION_FAILED", vault.log)


def test_the_operator_logs_in_and_users_get_what_they_declare(vault: Vault) -> None:
    vault.apply(topic("orders", partitions=1), HOME)
    until(lambda: vault.ready("Topic", "orders", HOME) == ("True", "Reconciled"), vault.log)
    alice = body(
        "User",
        "alice",
        {
            "cluster": {"name": "main", "namespace": HOME},
            "acls": [WRITE],
            "quotas": {"producer_byte_rate": 1e6},
        },
    )
    vault.apply(alice, TENANT)
    until(lambda: vault.ready("User", "alice", TENANT) == ("True", "Reconciled"), vault.log)
    password = vault.secret("alice-credentials", TENANT)["password"].decode()
    assert produce(vault, password) == ""
    assert produce(vault, password, "other") == "TOPIC_AUTHORIZATION_FAILED"

    with Admin(vault.grpc, security=vault.security) as admin:
        # What other clients change is repaired.
        mine = AclFilter(principal="User:alice")
        admin.delete_acls([mine])
        until(lambda: [acl.operation for acl in admin.describe_acls(mine)] == ["WRITE"], vault.log)
        entity = QuotaEntity(user="alice")
        assert [quota.values for quota in admin.describe_quotas(entity)] == [{"producer_byte_rate": 1e6}]
        admin.alter_quotas(entity, {"producer_byte_rate": 5.0, "consumer_byte_rate": 5.0})
        rate = {"producer_byte_rate": 1e6}
        until(lambda: [quota.values for quota in admin.describe_quotas(entity)] == [rate], vault.log)
        # Another password in the Secret is the user's next one.
        old = vault.secret("alice-credentials", TENANT)
        path = path_of(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "alice-credentials"}}, TENANT
        )
        changed = vault.api.request(
            "PATCH", path, {"stringData": {"password": "another-one"}}, kind="merge-patch+json"
        )
        version = changed["metadata"]["resourceVersion"]
        # The operator completes the Secret with the new password's login line, which is a newer version.
        until(
            lambda: int(vault.read("User", "alice", TENANT)["status"]["secretVersion"]) >= int(version),
            vault.log,
        )
        assert produce(vault, "another-one") == ""
        assert produce(vault, old["password"].decode(), timeout_ms=1000) != ""

        vault.delete("User", "alice", TENANT)
        until(lambda: not admin.describe_acls(mine) and not admin.describe_quotas(entity), vault.log)
        with pytest.raises(ResourceNotFound):
            admin.describe_users(["alice"])


def test_other_namespaces_need_a_grant(vault: Vault) -> None:
    elsewhere = {"cluster": {"name": "main", "namespace": HOME}}
    vault.apply(body("Topic", "granted", elsewhere), TENANT)
    vault.apply(body("Topic", "refused", elsewhere), STRANGER)
    vault.apply(body("User", "eve", elsewhere), STRANGER)
    until(lambda: vault.ready("Topic", "granted", TENANT) == ("True", "Reconciled"), vault.log)
    for kind, name in (("Topic", "refused"), ("User", "eve")):
        until(
            lambda kind=kind, name=name: vault.ready(kind, name, STRANGER) == ("False", "NotAllowed"),
            vault.log,
        )
    assert not vault.secret("eve-credentials", STRANGER)
    # A grant counts at once, and so does its end.
    vault.apply(cluster(**{**SPEC, "allowedNamespaces": [TENANT, STRANGER]}), HOME)
    until(lambda: vault.ready("Topic", "refused", STRANGER) == ("True", "Reconciled"), vault.log)
    vault.apply(cluster(**SPEC), HOME)
    until(lambda: vault.ready("Topic", "refused", STRANGER) == ("False", "NotAllowed"), vault.log)
    vault.delete("Topic", "refused", STRANGER)
    time.sleep(1)
    with Admin(vault.grpc, security=vault.security) as admin:
        assert "refused" in admin.list_topics(), "no grant, no deletion"


def test_network_policies_come_and_go(vault: Vault) -> None:
    version = "networking.k8s.io/v1"

    def there() -> list[bool]:
        return [
            bool(vault.read("NetworkPolicy", f"main-{part}", HOME, version)) for part in ("broker", "etcd")
        ]

    until(lambda: there() == [True, True], vault.log)
    vault.apply(cluster(**{**SPEC, "networkPolicy": {"enabled": False}}), HOME)
    until(lambda: there() == [False, False], vault.log)
    vault.apply(cluster(**SPEC), HOME)
    until(lambda: there() == [True, True], vault.log)
