"""ACLs with a real broker and stock clients: what is refused, what is allowed, and that changes take effect at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic

from authorization.guarded_broker import GuardedBroker

pytestmark = pytest.mark.integration


def written(guarded: GuardedBroker, user: str, topic: str) -> KafkaError | None:
    """The error that librdkafka reports for a record, if any."""
    told: list[Any] = []
    producer = Producer(guarded.librdkafka(user, message_timeout_ms=8000))
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    producer.flush(15)
    (error,) = told
    return error


def read(guarded: GuardedBroker, user: str, topic: str, group: str) -> str:
    """A value, or the name of the first error."""
    consumer = Consumer(guarded.librdkafka(user, group_id=group, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    deadline = time.monotonic() + 20
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                error = message.error()
                return error.name() if error else message.value().decode()
    except KafkaException as error:
        return error.args[0].name()
    finally:
        consumer.close()
    return "nothing"


def test_librdkafka_is_refused_and_then_allowed(guarded: GuardedBroker) -> None:
    error = written(guarded, "alice", "open")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.allow("alice", "WRITE", "TOPIC", "open")
    assert written(guarded, "alice", "open") is None
    assert written(guarded, "bob", "open") is not None, "an ACL of one user is no other's"
    assert read(guarded, "alice", "open", "g") == "GROUP_AUTHORIZATION_FAILED"
    guarded.allow("alice", "READ", "GROUP", "g")
    # Write implies Describe: the topic is found, and its records are refused.
    assert read(guarded, "alice", "open", "g") == "TOPIC_AUTHORIZATION_FAILED"
    guarded.allow("alice", "READ", "TOPIC", "ope", prefixed=True)
    assert read(guarded, "alice", "open", "g") == "x"
    guarded.deny("alice", "WRITE", "TOPIC", "open")
    assert written(guarded, "alice", "open") is not None, "a denial beats what allows"


def test_metadata_shows_what_may_be_described(guarded: GuardedBroker) -> None:
    alice = AdminClient(guarded.librdkafka("alice"))
    assert set(alice.list_topics(timeout=10).topics) == set()
    guarded.allow("alice", "DESCRIBE", "TOPIC", "open")
    assert set(alice.list_topics(timeout=10).topics) == {"open"}
    hidden = alice.list_topics("closed", timeout=10).topics["closed"]
    assert hidden.error is not None
    assert hidden.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    described = alice.describe_cluster(include_authorized_operations=True).result(10)
    assert not described.authorized_operations
    guarded.allow("alice", "ALTER", "CLUSTER", "kafka-cluster")
    described = alice.describe_cluster(include_authorized_operations=True).result(10)
    assert set(described.authorized_operations) == {AclOperation.ALTER, AclOperation.DESCRIBE}


def test_a_regular_expression_assigns_topics_that_may_be_described(guarded: GuardedBroker) -> None:
    """Of a broker-side group; a right that is added counts from the next heartbeat."""
    guarded.allow("alice", "READ", "GROUP", "regex")
    guarded.allow("alice", "READ", "TOPIC", "open")
    settings = guarded.librdkafka("alice", group_id="regex", group_protocol="consumer")
    consumer = Consumer(settings)
    consumer.subscribe(["^(open|closed)$"])

    def assigned(wanted: set[str]) -> None:
        deadline = time.monotonic() + 20
        while (found := {each.topic for each in consumer.assignment()}) != wanted:
            assert found <= wanted and time.monotonic() < deadline, found
            consumer.poll(0.1)

    assigned({"open"})
    guarded.allow("alice", "READ", "TOPIC", "closed")
    assigned({"open", "closed"})
    consumer.close()


def test_each_topic_has_its_own_outcome(guarded: GuardedBroker) -> None:
    alice = AdminClient(guarded.librdkafka("alice"))
    guarded.allow("alice", "CREATE", "TOPIC", "mine", prefixed=True)
    made = alice.create_topics([NewTopic("mine-1", 1, 1), NewTopic("theirs", 1, 1)])
    made["mine-1"].result(timeout=30)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        made["theirs"].result(timeout=30)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        alice.delete_topics(["mine-1"])["mine-1"].result(timeout=30)
    broker = ConfigResource(ConfigResource.Type.BROKER, "0")
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        alice.describe_configs([broker])[broker].result(timeout=30)
    guarded.allow("alice", "DELETE", "TOPIC", "mine-1")
    alice.delete_topics(["mine-1"])["mine-1"].result(timeout=30)


def test_offsets_of_topics_that_may_not_be_read_are_refused(guarded: GuardedBroker) -> None:
    guarded.allow("bob", "READ", "GROUP", "offsets")
    guarded.allow("bob", "READ", "TOPIC", "open")
    bob = Consumer(guarded.librdkafka("bob", group_id="offsets"))
    asked = [TopicPartition("open", 0, 7), TopicPartition("closed", 0, 7)]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        bob.commit(offsets=asked, asynchronous=False)
    (committed,) = bob.committed([TopicPartition("open", 0)], timeout=10)
    bob.close()
    assert committed.offset == 7, "the other topic's offset is committed"


def test_the_audit_log_names_principal_operation_and_resource(guarded: GuardedBroker) -> None:
    AdminClient(guarded.librdkafka("bob", client_id="curious")).list_topics("audited", timeout=10)
    deadline = time.monotonic() + 10
    lines: list[str] = []
    while not lines and time.monotonic() < deadline:
        time.sleep(0.2)
        lines = [line for line in guarded.log.splitlines() if "TOPIC:audited" in line]
    (line,) = lines
    for part in ("ottla.audit", "denied", "User:bob", "DESCRIBE", "127.0.0.1", "curious", "SSL"):
        assert part in line
