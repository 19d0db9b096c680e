"""Logins with a real broker and stock clients: each mechanism, with and without TLS, users made by kafka-configs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from certificates import Authority
from ottla_bench.kafka_jars import KAFKA_CONFIGS, KAFKA_CONSOLE_CONSUMER, KAFKA_CONSOLE_PRODUCER, run_tool
from ottla_cli.local_cluster import LocalCluster
from ottla_client.errors import CannotConnect
from ottla_client.security import PLAINTEXT, Security
from ottla_client.sync import Admin as NativeAdmin
from ottla_client.sync import Consumer as NativeConsumer
from ottla_client.sync import Producer as NativeProducer
from ottla_core.errors import SaslAuthenticationFailed
from ottla_core.ids import TopicPartition

with warnings.catch_warnings():
    # kafka-python 3.0 loads its schemas in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.integration

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
ROOT_PASSWORD, ALICE_PASSWORD = "root-secret-1", "alice-größe,="


class Guarded:
    """A broker without any listener for Kafka clients that do not log in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        certificate = self.authority.issue("broker", "/CN=broker", into=folder / "broker.pem")
        users = folder / "users"
        users.write_text(f"# first administrator\nroot:{ROOT_PASSWORD}\n")
        self.cluster = LocalCluster(
            settings={
                "grpc.listeners": "NATIVE://127.0.0.1:0,CLEAR://127.0.0.1:0",
                "advertised.grpc.listeners": "NATIVE://localhost:0",
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,SHORT://127.0.0.1:0",
                "advertised.listeners": "SASL_SSL://localhost:0",
                "listener.security.protocol.map": "SHORT:SASL_PLAINTEXT,NATIVE:SASL_SSL,CLEAR:SASL_PLAINTEXT",
                "listener.name.sasl_plaintext.sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl_ssl.sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "ssl.keystore.location": str(certificate),
                "ssl.truststore.location": str(self.authority.file),
                # As in Kafka, only for listeners without logins.
                "ssl.client.auth": "required",
                "sasl.users.file": str(users),
            }
        )
        self.cluster.start()
        self.facts = json.loads(Path(self.cluster.folder.file("broker-0.ready")).read_text())
        self.root = AdminClient(self.librdkafka("SASL_PLAINTEXT", "PLAIN", "root", ROOT_PASSWORD))

    def bootstrap(self, protocol: str) -> str:
        if protocol == "SASL_SSL":
            return "localhost:" + self.facts["listener.SASL_SSL"].rpartition(":")[2]
        return str(self.facts["listener.SHORT"] if protocol == "SHORT" else self.facts["kafka"])

    def librdkafka(
        self, protocol: str, mechanism: str, user: str = "alice", password: str = ALICE_PASSWORD, **more: Any
    ) -> dict[str, Any]:
        given = {
            "bootstrap.servers": self.bootstrap(protocol),
            "security.protocol": "SASL_SSL" if protocol == "SASL_SSL" else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.file),
        }
        return given | {name.replace("_", "."): value for name, value in more.items()}

    def java(self, protocol: str, mechanism: str, user: str, password: str) -> str:
        """A file with the settings of a Java client."""
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        path = self.folder / f"{protocol}-{mechanism}-{user}.properties"
        path.write_text(
            f"security.protocol={protocol}\nsasl.mechanism={mechanism}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
            f'username="{user}" password="{password}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.authority.file}\n"
        )
        return str(path)

    @property
    def native(self) -> str:
        return "localhost:" + self.facts["grpc"].rpartition(":")[2]

    @property
    def clear(self) -> str:
        return str(self.facts["listener.CLEAR"])

    def security(self, **more: str) -> Security:
        given = {
            "security_protocol": "SASL_SSL",
            "ssl_ca_location": str(self.authority.file),
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_username": "root",
            "sasl_password": ROOT_PASSWORD,
        }
        return Security(**(given | more))

    def log(self) -> str:
        return Path(self.cluster.brokers[0].child.log_path).read_text()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("sasl"))
    try:
        for created in made.root.create_topics(
            [NewTopic("t", 1, 1), NewTopic("java", 1, 1)], operation_timeout=20
        ).values():
            created.result(timeout=30)
        wanted: list[Any] = [
            UserScramCredentialUpsertion(
                "alice", ScramCredentialInfo(mechanism, 4096), ALICE_PASSWORD.encode()
            )
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for altered in made.root.alter_user_scram_credentials(wanted).values():
            altered.result(timeout=30)
        yield made
    finally:
        made.cluster.stop()


def reason_of_failure(settings: dict[str, Any]) -> str:
    """What librdkafka says about a connection that fails."""
    told: list[str] = []
    producer = Producer(settings | {"error_cb": lambda error: told.append(str(error))})
    deadline = time.monotonic() + 30
    while not told and time.monotonic() < deadline:
        producer.poll(0.2)
    return " ".join(told)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_and_kcat_and_kafka_python_and_aiokafka(
    guarded: Guarded, protocol: str, mechanism: str
) -> None:
    value = f"{protocol} {mechanism}".encode()
    producer = Producer(guarded.librdkafka(protocol, mechanism))
    reports: list[Any] = []
    producer.produce("t", value, on_delivery=lambda error, message: reports.append(error or message.offset()))
    assert producer.flush(30) == 0
    consumer = Consumer(guarded.librdkafka(protocol, mechanism, group_id=f"g-{mechanism}"))
    (low, high) = consumer.get_watermark_offsets(KafkaTopicPartition("t", 0), timeout=20)
    consumer.close()
    assert low <= reports[0] < high

    given = [f"-X{name}={value}" for name, value in guarded.librdkafka(protocol, mechanism).items()]
    place = ("-b", guarded.bootstrap(protocol), "-t", "t", "-o", str(reports[0]), "-c", "1", "-f", "%s")
    older = subprocess.run(["kcat", *given, "-C", *place], capture_output=True, timeout=60, check=True)
    assert older.stdout == value

    context = ssl.create_default_context(cafile=str(guarded.authority.file))
    login: dict[str, Any] = {
        "bootstrap_servers": [guarded.bootstrap(protocol)],
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": ALICE_PASSWORD,
        "ssl_context": context if protocol == "SASL_SSL" else None,
    }
    pure = kafka.KafkaConsumer(**login, consumer_timeout_ms=30_000, auto_offset_reset="earliest")
    pure.assign([kafka.TopicPartition("t", 0)])
    pure.seek(kafka.TopicPartition("t", 0), reports[0])
    assert next(iter(pure)).value == value
    pure.close()

    async def write() -> int:
        async with aiokafka.AIOKafkaProducer(**login) as client:
            return int((await client.send_and_wait("t", value)).offset)

    assert asyncio.run(write()) > reports[0]


def test_java_clients(guarded: Guarded) -> None:
    def options(protocol: str, mechanism: str) -> tuple[str, ...]:
        login = ("--command-config", guarded.java(protocol, mechanism, "root", ROOT_PASSWORD))
        return ("--bootstrap-server", guarded.bootstrap(protocol), "--topic", "java", *login)

    wrote = run_tool(KAFKA_CONSOLE_PRODUCER, *options("SASL_SSL", "SCRAM-SHA-512"), stdin="of java\n")
    assert wrote.returncode == 0, wrote.stderr
    until = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    read = run_tool(KAFKA_CONSOLE_CONSUMER, *options("SASL_PLAINTEXT", "PLAIN"), *until)
    assert read.stdout.splitlines() == ["of java"], read.stderr


def test_kafka_configs_makes_a_user_that_logs_in(guarded: Guarded) -> None:
    server = ("--bootstrap-server", guarded.bootstrap("SASL_SSL"))
    login = ("--command-config", guarded.java("SASL_SSL", "SCRAM-SHA-256", "root", ROOT_PASSWORD))
    user = ("--entity-type", "users", "--entity-name", "bob")
    made = run_tool(
        KAFKA_CONFIGS,
        *server,
        *login,
        "--alter",
        *user,
        "--add-config",
        "SCRAM-SHA-256=[iterations=8192,password=b-1]",
    )
    assert made.returncode == 0, made.stderr
    assert "Completed updating config for user bob." in made.stdout, made.stdout + made.stderr
    bob = AdminClient(guarded.librdkafka("SASL_SSL", "SCRAM-SHA-256", "bob", "b-1"))
    assert "t" in bob.list_topics(timeout=20).topics
    described = guarded.root.describe_user_scram_credentials(["bob"])["bob"].result(timeout=20)
    assert [(str(i.mechanism), i.iterations) for i in described.scram_credential_infos] == [
        (str(ScramMechanism.SCRAM_SHA_256), 8192)
    ]
    gone = guarded.root.alter_user_scram_credentials(
        [UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256)]
    )
    gone["bob"].result(timeout=20)
    with pytest.raises(KafkaException, match="not exist"):
        guarded.root.describe_user_scram_credentials(["bob"])["bob"].result(timeout=20)
    told = reason_of_failure(guarded.librdkafka("SASL_SSL", "SCRAM-SHA-256", "bob", "b-1"))
    assert "invalid credentials" in told


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_are_told_alike(guarded: Guarded, mechanism: str) -> None:
    wrong = reason_of_failure(guarded.librdkafka("SASL_PLAINTEXT", mechanism, password="wr0ng-pw"))
    unknown = reason_of_failure(
        guarded.librdkafka("SASL_PLAINTEXT", mechanism, user="nobody", password="wr0ng-pw")
    )
    for told in (wrong, unknown):
        assert f"invalid credentials with SASL mechanism {mechanism}" in told
    log = guarded.log()
    assert "login failed" in log
    assert "unknown user or wrong password" in log
    assert "wr0ng-pw" not in log
    assert ALICE_PASSWORD not in log


def test_aiokafka_is_told_of_a_wrong_password(guarded: Guarded) -> None:
    began = time.monotonic()
    login: dict[str, Any] = {
        "bootstrap_servers": [guarded.bootstrap("SASL_PLAINTEXT")],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "wr0ng-pw",
    }

    async def write() -> None:
        client = aiokafka.AIOKafkaProducer(**login, request_timeout_ms=5000)
        try:
            await client.start()
        finally:
            await client.stop()

    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(write())
    assert time.monotonic() - began < 20


def test_an_oversized_token_closes_its_connection_only(guarded: Guarded) -> None:
    host, _, port = guarded.bootstrap("SASL_PLAINTEXT").partition(":")
    with socket.create_connection((host, int(port)), 20) as raw:
        handshake = struct.pack(">hhih", 17, 1, 1, -1) + struct.pack(">h5s", 5, b"PLAIN")
        raw.sendall(struct.pack(">i", len(handshake)) + handshake)
        assert raw.recv(4)
        raw.sendall(struct.pack(">ihhih", 100_000_000, 36, 1, 2, -1) + b"x" * 100_000)
        began = time.monotonic()
        try:
            while raw.recv(4096):
                pass
        except ConnectionResetError:
            pass
        assert time.monotonic() - began < 10
    assert "t" in guarded.root.list_topics(timeout=20).topics


def test_clients_that_speak_another_security_protocol_are_told(guarded: Guarded) -> None:
    plain = {"bootstrap.servers": guarded.bootstrap("SASL_PLAINTEXT")}
    assert reason_of_failure(plain), "a client that does not log in is disconnected"
    assert reason_of_failure(guarded.librdkafka("SHORT", "PLAIN")), "PLAIN is not enabled there"
    assert guarded.cluster.dead == []


def test_our_client_writes_and_reads_after_a_login(guarded: Guarded) -> None:
    clear = Security("SASL_PLAINTEXT", sasl_username="alice", sasl_password=ALICE_PASSWORD)
    for bootstrap, security in ((guarded.native, guarded.security()), (guarded.clear, clear)):
        with NativeProducer(bootstrap, security=security) as producer:
            offset = producer.send_and_wait("t", bootstrap.encode()).offset
        with NativeConsumer(bootstrap, security=security, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.seek(TopicPartition("t", 0), offset)
            assert next(iter(consumer)).value == bootstrap.encode()


def test_our_client_says_what_is_wrong(guarded: Guarded, tmp_path: Path) -> None:
    strangers = Authority(tmp_path / "other", "other-ca")
    wrong: list[tuple[str, Security, type[Exception], str]] = [
        (
            guarded.native,
            guarded.security(sasl_password="wr0ng-pw"),
            SaslAuthenticationFailed,
            "wrong password",
        ),
        (
            guarded.native,
            guarded.security(sasl_username="nobody"),
            SaslAuthenticationFailed,
            "wrong password",
        ),
        (
            guarded.native,
            Security("SSL", ssl_ca_location=str(guarded.authority.file)),
            SaslAuthenticationFailed,
            "set sasl.username and sasl.password",
        ),
        (
            guarded.native,
            guarded.security(ssl_ca_location=str(strangers.file)),
            CannotConnect,
            "Check ssl.ca.location",
        ),
        (guarded.native, PLAINTEXT, CannotConnect, "speaks TLS: set security.protocol=SSL or SASL_SSL"),
        (
            guarded.clear,
            guarded.security(),
            CannotConnect,
            "does not speak TLS: set security.protocol=SASL_PLAINTEXT",
        ),
    ]
    for bootstrap, security, kind, sentence in wrong:
        began = time.monotonic()
        with pytest.raises(kind, match=sentence), NativeAdmin(bootstrap, security=security):
            pass
        assert time.monotonic() - began < 20
    assert "wr0ng-pw" not in guarded.log()


def ottla(*arguments: str, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "ottla"), *arguments],
        env=os.environ | {"XDG_CONFIG_HOME": str(home)},
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_the_command_line_makes_users_with_a_profile(guarded: Guarded, tmp_path: Path) -> None:
    profiles = tmp_path / "ottla" / "profiles.toml"
    profiles.parent.mkdir()
    profiles.write_text(
        f'[here]\nbootstrap.servers = "{guarded.native}"\nsecurity.protocol = "SASL_SSL"\n'
        f'ssl.ca.location = "{guarded.authority.file}"\nsasl.username = "root"\nsasl.password = "{ROOT_PASSWORD}"\n'
    )
    profiles.chmod(0o644)
    refused = ottla("users", "list", "--profile", "here", home=tmp_path)
    assert refused.returncode == 2
    assert "chmod 600" in refused.stderr
    profiles.chmod(0o600)

    made = ottla(
        "--profile=here", "users", "create", "carol", "--password-file", "-", home=tmp_path, stdin="c-1\n"
    )
    assert made.returncode == 0, made.stderr
    carol = AdminClient(guarded.librdkafka("SASL_SSL", "SCRAM-SHA-512", "carol", "c-1"))
    assert "t" in carol.list_topics(timeout=20).topics
    again = ottla(
        "users", "create", "carol", "--password-file", "-", "--profile", "here", home=tmp_path, stdin="x\n"
    )
    assert "ottla users passwd carol" in again.stderr
    changed = ottla(
        "users", "passwd", "carol", "--password-file", "-", "--profile", "here", home=tmp_path, stdin="c-2"
    )
    assert changed.returncode == 0, changed.stderr
    profiles.write_text(profiles.read_text().replace('"root"', '"carol"').replace(ROOT_PASSWORD, "c-2"))
    listed = ottla("users", "list", "--json", "--profile", "here", home=tmp_path)
    assert {"user": "carol", "mechanisms": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}} in json.loads(
        listed.stdout
    )
    gone = ottla("users", "delete", "carol", "--yes", "--profile", "here", home=tmp_path)
    assert gone.returncode == 0, gone.stderr
    refused = ottla("topics", "list", "--profile", "here", home=tmp_path)
    assert refused.returncode == 1
    assert "unknown user or wrong password" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_sessions_end_and_rights_go_by_the_user(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"root:{ROOT_PASSWORD}\neve:eve-1\n")
    cluster = LocalCluster(
        settings={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "connections.max.reauth.ms": "1500",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:root",
            "sasl.users.file": str(users),
        }
    )
    cluster.start()
    try:
        bootstrap = cluster.brokers[0].kafka
        login = {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "root",
            "sasl.password": ROOT_PASSWORD,
            "linger.ms": 0,
        }
        producer = Producer(login)
        errors: list[Any] = []
        until = time.monotonic() + 4
        while time.monotonic() < until:
            producer.produce(
                "auto", b"x", on_delivery=lambda error, _: errors.append(error) if error else None
            )
            producer.poll(0.1)
        assert producer.flush(20) == 0
        assert errors == []
        log = Path(cluster.brokers[0].child.log_path).read_text()
        assert "connections.max.reauth.ms" not in log, "librdkafka logs in again in time"
        eve = Producer(login | {"sasl.username": "eve", "sasl.password": "eve-1"})
        eve.produce("auto", b"x", on_delivery=lambda error, _: errors.append(error))
        eve.flush(20)
        assert "authorization failed" in str(errors[0]).lower()
    finally:
        cluster.stop()
