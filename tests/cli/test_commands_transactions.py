"""`ottla transactions` and `ottla consume --read-committed` against a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cli.ottla_command import Ottla
from ottla_cli.local_cluster import LocalCluster
from ottla_client.errors import ProducerFenced
from ottla_client.sync import Producer

pytestmark = pytest.mark.integration


@pytest.fixture
def producer(local_cluster: LocalCluster) -> Iterator[Producer]:
    """With an open transaction."""
    name = f"cli-{uuid.uuid4().hex[:8]}"
    with Producer(local_cluster.grpc_bootstrap, transactional_id=name) as made:
        made.begin()
        yield made


def test_an_open_transaction_is_shown_and_aborted(ottla: Ottla, producer: Producer) -> None:
    topic = ottla.topic("--partitions", "2")
    name = producer._inner._transaction.transactional_id  # type: ignore[union-attr]
    producer.send_and_wait(topic, b"open", partition=1)
    (listed,) = ottla("transactions", "list", "--state", "ongoing", name, "--json").json
    assert (listed["transactional_id"], listed["state"]) == (name, "Ongoing")
    assert ottla("transactions", "list", name, "--longer-than", "1h", "--json").json == []
    (described,) = ottla("transactions", "describe", name, "--json").json
    assert described["partitions"] == [{"topic": topic, "partition": 1}]
    assert described["producer_id"] == listed["producer_id"]
    shown = ottla("transactions", "describe", name).out
    assert f"{name}: Ongoing, 1 partition" in shown and " ago" in shown
    assert max(map(len, shown.splitlines())) <= 80
    (active,) = ottla("transactions", "producers", topic, "--open", "--json").json
    assert (active["partition"], active["transaction_first_offset"]) == (1, 0)
    assert ottla.consume(topic, "--read-committed", "--no-follow") == b""
    assert ottla("transactions", "find-hanging", topic, "--longer-than", "0s", "--json").json == []

    assert f"{name}: aborted." in ottla("transactions", "abort", name, "--yes").out
    assert (
        ottla("transactions", "abort", name, "--yes").out.strip() == f"{name}: there is no open transaction."
    )
    with pytest.raises(ProducerFenced):
        producer.commit()
    assert ottla.consume(topic, "--read-committed", "--no-follow") == b""
    assert ottla.consume(topic, "--no-follow").split() == [b"open"]


def test_a_transaction_is_aborted_in_one_partition(ottla: Ottla, producer: Producer) -> None:
    topic = ottla.topic("--partitions", "1")
    producer.send_and_wait(topic, b"open")
    place = ("--topic", topic, "--partition", "0", "--yes", "--start-offset")
    wrong = ottla("transactions", "abort", *place, "7", code=1)
    assert "No open transaction begins at offset 7" in wrong.err
    assert "is aborted" in ottla("transactions", "abort", *place, "0").out
    assert ottla("transactions", "producers", topic, "--open", "--json").json == []


def test_mistakes_get_a_sentence(ottla: Ottla, producer: Producer) -> None:
    name = producer._inner._transaction.transactional_id  # type: ignore[union-attr]
    assert f"Did you mean '{name}'" in ottla("transactions", "describe", name + "x", code=1).err
    assert "--start-offset" in ottla("transactions", "abort", code=2).err
    assert "--start-offset" in ottla("transactions", "abort", "--topic", "t", code=2).err
