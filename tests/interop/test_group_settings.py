"""Settings of a consumer group, set and seen with stock clients: they count before what members ask for."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from interop.target import Target
from ottla_bench.kafka_jars import KAFKA_CONFIGS, run_tool

pytestmark = pytest.mark.integration

ASSIGNOR = "consumer.assignor"
SESSION = "consumer.session.timeout.ms"


@pytest.fixture
def group(target: Target) -> str:
    if not target.is_ottla:
        pytest.skip("Apache Kafka's groups have other settings.")
    return f"group-{uuid.uuid4().hex[:8]}"


@contextmanager
def member(target: Target, group: str, topic: str, strategies: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": group,
            "client.id": strategies.replace(",", "-"),
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 6000,
            "partition.assignment.strategy": strategies,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def alter(admin: AdminClient, group: str, **values: str | None) -> None:
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            value or "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for outcome in admin.incremental_alter_configs([resource]).values():
        outcome.result(20)


def described(admin: AdminClient, group: str) -> dict[str, Any]:
    (outcome,) = admin.describe_configs([ConfigResource(ResourceType.GROUP, group)]).values()
    found: dict[str, Any] = outcome.result(20)
    return found


def in_use(admin: AdminClient, group: str) -> str:
    (outcome,) = admin.describe_consumer_groups([group]).values()
    return str(outcome.result(20).partition_assignor)


def live_until(holds: Callable[[], bool], *consumers: Consumer) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, [c.assignment() for c in consumers]
        for consumer in consumers:
            consumer.poll(0.1)


def test_the_declared_assignor_wins(
    target: Target,
    admin: AdminClient,
    group: str,
    new_name: Callable[[], str],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(new_name(), 4)
    with (
        member(target, group, topic, "range,roundrobin") as one,
        member(target, group, topic, "range,roundrobin") as other,
    ):
        live_until(lambda: len(one.assignment()) == len(other.assignment()) == 2, one, other)
        assert in_use(admin, group) == "range", "what both like best"
        alter(admin, group, consumer_assignor="roundrobin")
        live_until(lambda: in_use(admin, group) == "roundrobin", one, other)
        # Who does not know it may come all the same: then the vote decides.
        with member(target, group, topic, "range") as stranger:
            live_until(lambda: len(stranger.assignment()) > 0, one, other, stranger)
            live_until(lambda: in_use(admin, group) == "range", one, other, stranger)
        live_until(lambda: in_use(admin, group) == "roundrobin", one, other)


def test_settings_by_the_admin_client(admin: AdminClient, group: str) -> None:
    assert {each.value for each in described(admin, group).values()} == {None}
    alter(admin, group, consumer_assignor="range", consumer_session_timeout_ms="20000")
    found = described(admin, group)
    assert (found[ASSIGNOR].value, found[SESSION].value) == ("range", "20000")
    assert found[ASSIGNOR].source == ConfigSource.GROUP_CONFIG.value
    alter(admin, group, consumer_assignor=None)
    assert described(admin, group)[ASSIGNOR].value is None
    for values in (
        {"consumer_session_timeout_ms": "10"},
        {"consumer_session_timeout_ms": "soon"},
        {"retention_ms": "1"},
    ):
        with pytest.raises(KafkaException, match="INVALID_CONFIG"):
            alter(admin, group, **values)


@pytest.mark.java
def test_kafka_configs_of_a_group(target: Target, group: str) -> None:
    def tool(*arguments: str) -> str:
        done = run_tool(
            KAFKA_CONFIGS, "--bootstrap-server", target.bootstrap, "--entity-type", "groups", *arguments
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    entity = ("--entity-name", group)
    tool("--alter", *entity, "--add-config", "consumer.session.timeout.ms=50000,consumer.assignor=range")
    shown = tool("--describe", *entity)
    assert "consumer.session.timeout.ms=50000 sensitive=false" in shown
    assert "DYNAMIC_GROUP_CONFIG:consumer.assignor=range" in shown
    assert group in tool("--describe"), "all groups that have settings"
    tool("--alter", *entity, "--delete-config", "consumer.assignor")
    assert "consumer.assignor" not in tool("--describe", *entity)
