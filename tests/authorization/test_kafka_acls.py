"""Kafka's own tools with ACLs: `kafka-acls` as shipped, and what a console client says without a right."""

from __future__ import annotations

import pytest

from authorization.guarded_broker import GuardedBroker
from ottla_bench.kafka_jars import KAFKA_ACLS, KAFKA_TOPICS, run_tool

pytestmark = [pytest.mark.integration, pytest.mark.java]


def acls(guarded: GuardedBroker, *arguments: str) -> str:
    done = guarded.tool(KAFKA_ACLS, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception" not in done.stdout + done.stderr
    return done.stdout


def test_kafka_acls_adds_lists_and_removes(guarded: GuardedBroker) -> None:
    producer = ("--producer", "--topic", "open", "--transactional-id", "x")
    added = acls(guarded, "--add", "--allow-principal", "User:alice", *producer)
    assert (
        "Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=open, patternType=LITERAL)`"
        in added
    )
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        assert f"(principal=User:alice, host=*, operation={operation}, permissionType=ALLOW)" in added
    consumer = ("--consumer", "--topic", "ope", "--group", "g", "--resource-pattern-type", "prefixed")
    acls(guarded, "--add", "--allow-principal", "User:bob", *consumer)
    acls(
        guarded,
        "--add",
        "--deny-principal",
        "User:bob",
        "--deny-host",
        "10.0.0.7",
        "--operation",
        "Read",
        "--topic",
        "open",
    )
    listed = acls(guarded, "--list", "--topic", "open", "--resource-pattern-type", "match")
    assert "name=ope, patternType=PREFIXED" in listed
    assert "(principal=User:bob, host=10.0.0.7, operation=READ, permissionType=DENY)" in listed
    assert "resourceType=GROUP" not in listed
    acls(guarded, "--remove", "--force", "--allow-principal", "User:alice", *producer)
    everything = acls(guarded, "--list")
    assert "User:alice" not in everything
    assert "resourceType=GROUP, name=g" in everything


def test_java_says_what_is_missing(guarded: GuardedBroker) -> None:
    done = run_tool(
        KAFKA_TOPICS,
        *("--bootstrap-server", guarded.secured, "--command-config", str(guarded.java_properties("alice"))),
        *("--create", "--topic", "theirs"),
    )
    assert done.returncode != 0
    assert "TopicAuthorizationException" in done.stderr
    assert "User:alice needs an ACL that allows CREATE on topic 'theirs'." in done.stdout + done.stderr
