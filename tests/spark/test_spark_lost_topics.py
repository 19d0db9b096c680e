"""Streams whose topic is deleted, or deleted and created again, while the query runs or is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from ottla_client import NewTopic
from ottla_client.sync import Admin
from spark.spark_queries import PATIENCE_S, Collected

pytestmark = pytest.mark.integration

Collect = Callable[[str], Collected]
Send = Callable[..., None]
CARELESS = {"failOnDataLoss": "false"}


def recreate(admin: Admin, topic: str, partitions: int = 1) -> None:
    admin.delete_topics([topic])
    admin.create_topics([NewTopic(topic, partitions)])


@pytest.mark.parametrize("count", [150, 20], ids=["more", "fewer"])
def test_a_topic_created_again_stops_the_query_or_is_read_from_its_beginning(
    collect: Collect, send: Send, make_topic: Callable[..., str], admin: Admin, count: int
) -> None:
    topic = make_topic(1)
    send(topic, range(100))
    collected = collect(topic)
    collected.all_there_is()
    recreate(admin, topic)
    send(topic, range(1000, 1000 + count))
    query = collected.start({"availableNow": True})
    sentence = (
        f"Topic '{topic}' was deleted and created again since it was last read; set failOnDataLoss to false"
    )
    with pytest.raises(StreamingQueryException, match=sentence):
        query.awaitTermination(PATIENCE_S)
    collected.all_there_is(**CARELESS, maxOffsetsPerTrigger="40")
    assert collected.numbers == [*range(100), *range(1000, 1000 + count)]
    # The new topic is the one that counts now.
    send(topic, range(2000, 2010))
    collected.all_there_is()
    assert collected.numbers == [*range(100), *range(1000, 1000 + count), *range(2000, 2010)]


def test_a_running_query_survives_deletion_and_re_creation(
    collect: Collect, send: Send, make_topic: Callable[..., str], admin: Admin
) -> None:
    topic = make_topic(1)
    send(topic, range(50))
    collected = collect(topic)
    with collected.running(**CARELESS) as query:
        collected.wait_for(query, 50)
        admin.delete_topics([topic])
        collected.wait_until(query, lambda: topic not in collected.logged()[-1])
        admin.create_topics([NewTopic(topic, 2)])
        send(topic, range(100, 130), 2)
        collected.wait_for(query, 80)
        recreate(admin, topic)
        send(topic, range(200, 260))
        collected.wait_for(query, 140)
    assert collected.numbers == [*range(50), *range(100, 130), *range(200, 260)]


def test_a_deleted_topic_stops_the_query_with_a_sentence(
    collect: Collect, send: Send, make_topic: Callable[..., str], admin: Admin
) -> None:
    topic = make_topic(1)
    send(topic, range(50))
    collected = collect(topic)
    with collected.running() as query:
        collected.wait_for(query, 50)
        admin.delete_topics([topic])
        sentence = f"Partition {topic}-0, read up to offset 50, no longer exists; set failOnDataLoss"
        with pytest.raises(StreamingQueryException, match=sentence):
            query.awaitTermination(PATIENCE_S)


def test_a_micro_batch_of_a_topic_that_is_gone_is_not_repeated(
    collect: Collect, send: Send, make_topic: Callable[..., str], admin: Admin
) -> None:
    """Its end is in the checkpoint, but its records are not there any more; the new ones are not taken for them."""
    topic = make_topic(1)
    send(topic, range(50))
    collected = collect(topic)
    collected.failure = RuntimeError("not this time")
    query = collected.start({"availableNow": True})
    with pytest.raises(StreamingQueryException, match="not this time"):
        query.awaitTermination(PATIENCE_S)
    recreate(admin, topic)
    send(topic, range(1000, 1100))
    query = collected.start({"availableNow": True})
    sentence = (
        f"Partition {topic}-0 cannot be read up to offset 50: it was deleted and created again; set fail"
    )
    with pytest.raises(StreamingQueryException, match=sentence):
        query.awaitTermination(PATIENCE_S)
    collected.all_there_is(**CARELESS)
    assert collected.numbers == list(range(1000, 1100))


def test_a_checkpoint_without_topic_ids_is_read_on(
    collect: Collect, send: Send, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(1)
    send(topic, range(50))
    collected = collect(topic)
    collected.all_there_is()
    (log,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:-1], json.dumps({topic: {"0": 50}})]))
    for checksum in log.parent.glob(".*.crc"):
        checksum.unlink()
    send(topic, range(50, 80))
    collected.all_there_is()
    assert collected.numbers == list(range(80))
    assert "#topicIds" in collected.logged()[-1]


def test_an_unknown_topic_is_an_error_whatever_happens_to_lost_data(collect: Collect) -> None:
    query = collect("no-such-topic").start({"availableNow": True}, **CARELESS)
    with pytest.raises(StreamingQueryException, match="Topic 'no-such-topic' does not exist at 127"):
        query.awaitTermination(PATIENCE_S)
