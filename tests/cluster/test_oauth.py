"""Logins with tokens: a real broker, stock clients and ours, and an identity provider on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from identity_provider import CLIENT, SECRET, IdentityProvider, Key
from ottla_bench.kafka_jars import KAFKA_CONSOLE_PRODUCER, run_tool
from ottla_cli.local_cluster import LocalCluster
from ottla_client.security import Security
from ottla_client.sync import Admin as NativeAdmin
from ottla_core.errors import SaslAuthenticationFailed, TopicAuthorizationFailed

with warnings.catch_warnings():
    # kafka-python 3.0 loads its schemas in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.net.sasl.oauth import AbstractTokenProvider

pytestmark = pytest.mark.integration

TOPIC = "tokens"


class Setup:
    def __init__(self, provider: IdentityProvider) -> None:
        self.provider = provider
        self.cluster = LocalCluster(
            settings={
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "grpc.listeners": "NATIVE://127.0.0.1:0",
                "listener.security.protocol.map": "NATIVE:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
                "sasl.oauthbearer.expected.audience": "ottla",
                "sasl.oauthbearer.expected.issuer": "https://idp.test",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:root;User:{CLIENT}",
            }
        )
        self.cluster.start()
        facts = json.loads(Path(self.cluster.folder.file("broker-0.ready")).read_text())
        self.kafka, self.native = str(facts["kafka"]), str(facts["grpc"])

    def librdkafka(self, token: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token, time.time() + 300, "alice", {}),
            **more,
        }

    def security(self, token: str) -> Security:
        return Security("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", token_provider=lambda: token)

    def log(self) -> str:
        return Path(self.cluster.brokers[0].child.log_path).read_text()


@pytest.fixture(scope="module")
def oauth() -> Iterator[Setup]:
    with IdentityProvider() as provider:
        made = Setup(provider)
        try:
            with NativeAdmin(made.native, security=made.security(provider.key.token("root"))) as admin:
                admin.create_topics([TOPIC])
            yield made
        finally:
            made.cluster.stop()


def test_stock_clients_log_in_with_tokens(oauth: Setup) -> None:
    token = oauth.provider.curve.token("root")
    by_callback = Producer(oauth.librdkafka(token))
    oidc = {
        "bootstrap.servers": oauth.kafka,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "plain",
        "sasl.oauthbearer.client.secret": "plain",
        "sasl.oauthbearer.token.endpoint.url": f"{oauth.provider.url}/token",
    }
    by_endpoint = AdminClient(oidc)
    assert oauth.kafka.rpartition(":")[2] in str(by_endpoint.list_topics(timeout=20).brokers)
    by_callback.produce(TOPIC, b"librdkafka")
    assert by_callback.flush(20) == 0

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token

    client = kafka.KafkaProducer(
        bootstrap_servers=oauth.kafka,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    offset = client.send(TOPIC, b"kafka-python").get(20).offset
    client.close()

    class AsyncProvider(aiokafka.abc.AbstractTokenProvider):
        async def token(self) -> str:
            return token

    async def by_aiokafka() -> int:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=oauth.kafka,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=AsyncProvider(),
        ) as producer:
            return int((await producer.send_and_wait(TOPIC, b"aiokafka")).offset)

    assert asyncio.run(by_aiokafka()) == offset + 1


@pytest.mark.java
def test_the_java_client_gets_its_token_from_the_endpoint(
    oauth: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{oauth.provider.url}/token"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}")
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={url}\n"
        "sasl.login.callback.handler.class="
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="plain" clientSecret="plain";\n'
    )
    with NativeAdmin(oauth.native, security=oauth.security(oauth.provider.key.token("root"))) as admin:
        from ottla_client.acl_admin import Acl

        admin.create_acls([Acl("TOPIC", TOPIC, "User:plain", "WRITE")])
    done = run_tool(
        KAFKA_CONSOLE_PRODUCER,
        *("--bootstrap-server", oauth.kafka, "--producer.config", str(settings), "--topic", TOPIC),
        stdin="java\n",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR" not in done.stdout + done.stderr


def test_wrong_tokens_are_refused_with_the_reason_on_both_sides(oauth: Setup) -> None:
    key = oauth.provider.key
    cases = {
        Key(key.id, "RS256").token(): "the signature of the token is not valid",
        key.token(lifetime_s=-100): "the token expired 10",
        key.token(aud="elsewhere"): "the token's audience is 'elsewhere', not 'ottla'",
        Key("unknown-1", "ES256").token(): "no key has the id 'unknown-1'",
    }
    for token, sentence in cases.items():
        errors: list[str] = []
        client = AdminClient(oauth.librdkafka(token, error_cb=lambda error, to=errors: to.append(str(error))))
        began = time.monotonic()
        while not any(sentence in each for each in errors):
            client.poll(0.1)
            assert time.monotonic() - began < 10, errors
        with (
            pytest.raises(SaslAuthenticationFailed) as refused,
            NativeAdmin(oauth.native, security=oauth.security(token)) as admin,
        ):
            admin.describe_cluster()
        assert sentence in str(refused.value)
        assert token not in oauth.log()
    assert "the signature of the token is not valid" in oauth.log()


def test_our_client_renews_its_token_and_the_command_line_has_it_in_a_profile(
    oauth: Setup, tmp_path: Path
) -> None:
    provider = oauth.provider
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
    }
    provider.lifetime_s, before = 2.0, provider.grants
    with NativeAdmin(oauth.native, security=options) as admin:
        until = time.monotonic() + 3.5
        while time.monotonic() < until:
            assert TOPIC in admin.list_topics()
            time.sleep(0.1)
    assert 2 <= provider.grants - before <= 4
    provider.lifetime_s = 300.0

    wrong = options | {"sasl.oauthbearer.client.secret": "no"}
    with (
        pytest.raises(SaslAuthenticationFailed, match=r"answered 401; check sasl\.oauthbearer\.client\.id"),
        NativeAdmin(oauth.native, security=wrong) as admin,
    ):
        admin.describe_cluster()
    eve = oauth.security(provider.key.token("eve"))
    with (
        NativeAdmin(oauth.native, security=eve) as admin,
        pytest.raises(TopicAuthorizationFailed, match="User:eve"),
    ):
        admin.create_topics(["of-eve"])

    folder = tmp_path / "ottla"
    folder.mkdir()
    (folder / "token").write_text(provider.curve.token("root"))
    (folder / "profiles.toml").write_text(
        f'[file]\nbootstrap.servers = "{oauth.native}"\nsecurity.protocol = "SASL_PLAINTEXT"\n'
        'sasl.mechanism = "OAUTHBEARER"\nsasl.oauthbearer.token.file = "token"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "ottla_cli", "--profile", "file", "topics", "list"],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and TOPIC in done.stdout, done.stderr


def test_a_session_ends_with_its_token(oauth: Setup) -> None:
    """A client that renews logs in again on its connection; one that does not is disconnected."""
    provider, tokens = oauth.provider, list[str]()

    def renewed(_: str) -> tuple[str, float, str, dict[str, str]]:
        tokens.append(provider.key.token("root", lifetime_s=3))
        return tokens[-1], time.time() + 3, "root", {}

    errors: list[str] = []
    client = Producer(
        oauth.librdkafka("", oauth_cb=renewed, error_cb=lambda error: errors.append(str(error)))
    )
    until = time.monotonic() + 4.5
    while time.monotonic() < until:
        client.produce(TOPIC, b"x")
        assert client.flush(10) == 0
        time.sleep(0.1)
    assert len(tokens) >= 2 and not errors
