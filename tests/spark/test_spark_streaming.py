"""Streaming queries against a real broker: checkpoints, limits, triggers, growth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ottla_cli.local_cluster import LocalCluster
from ottla_client import TopicPartition
from ottla_client.sync import Admin
from spark.spark_queries import PATIENCE_S, Collected

pytestmark = pytest.mark.integration


def test_a_restarted_query_goes_on_where_it_stopped(
    collect: Callable[[str], Collected],
    send: Callable[..., None],
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic(2)
    send(topic, range(100), 2)
    collected = collect(topic)
    with collected.running() as query:
        collected.wait_for(query, 100)
        send(topic, range(100, 150), 2)
        collected.wait_for(query, 150)
    send(topic, range(150, 200), 2)
    with collected.running() as query:
        collected.wait_for(query, 200)
    assert collected.numbers == list(range(200))
    assert collected.logged()[-1][topic] == {"0": 100, "1": 100}


def test_a_query_with_a_group_id_shows_its_lag_as_that_group(
    collect: Callable[[str], Collected],
    send: Callable[..., None],
    make_topic: Callable[..., str],
    admin: Admin,
) -> None:
    topic = make_topic(2)
    send(topic, range(100), 2)
    collected = collect(topic)

    def committed() -> list[int]:
        return sorted(each.offset for each in admin.group_offsets(f"{topic}-lag").values())

    with collected.running(**{"kafka.group.id": f"{topic}-lag"}) as query:
        collected.wait_until(query, lambda: committed() == [50, 50])
    assert committed() == [50, 50]
    assert collected.numbers == list(range(100))
    send(topic, range(100, 110), 2)
    assert [each.lag for each in admin.group_lag(f"{topic}-lag").values()] == [5, 5]


def test_available_now_reads_what_is_there_within_the_limit(
    collect: Callable[[str], Collected], send: Callable[..., None], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    send(topic, range(100), 2)
    collected = collect(topic)
    collected.all_there_is(maxOffsetsPerTrigger="30")
    assert collected.numbers == list(range(100))
    assert [len(batch) for batch in collected.batches.values()] == [30, 30, 30, 10]
    send(topic, range(100, 110), 2)
    collected.all_there_is(maxOffsetsPerTrigger="30")
    assert collected.numbers == list(range(110))
    assert len(collected.batches) == 5


def test_a_partition_that_is_added_is_picked_up(
    collect: Callable[[str], Collected],
    send: Callable[..., None],
    make_topic: Callable[..., str],
    admin: Admin,
) -> None:
    topic = make_topic(1)
    send(topic, range(10))
    collected = collect(topic)
    with collected.running() as query:
        collected.wait_for(query, 10)
        admin.create_partitions(topic, 3)
        send(topic, range(10, 40), 3)
        collected.wait_for(query, 40)
        progress = query.lastProgress
    assert collected.numbers == list(range(40))
    assert progress is not None
    assert topic in str(progress["sources"][0]["latestOffset"])


def test_expired_offsets_stop_the_query_unless_data_loss_is_accepted(
    collect: Callable[[str], Collected],
    send: Callable[..., None],
    make_topic: Callable[..., str],
    admin: Admin,
) -> None:
    topic = make_topic(1)
    send(topic, range(10))
    collected = collect(topic)
    collected.all_there_is()
    send(topic, range(10, 100))
    admin.delete_records({TopicPartition(topic, 0): 60})
    query = collected.start({"availableNow": True})
    with pytest.raises(StreamingQueryException, match=f"Offsets 10 to 59 of {topic}-0 have expired"):
        query.awaitTermination(PATIENCE_S)
    collected.all_there_is(failOnDataLoss="false")
    assert collected.numbers == [*range(10), *range(60, 100)]


def test_an_unknown_topic_stops_the_query_with_a_sentence(collect: Callable[[str], Collected]) -> None:
    query = collect("no-such-topic").start({"availableNow": True})
    with pytest.raises(StreamingQueryException, match="Topic 'no-such-topic' does not exist"):
        query.awaitTermination(PATIENCE_S)


def test_a_start_behind_the_end_is_reported(
    collect: Callable[[str], Collected], send: Callable[..., None], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    send(topic, range(3))
    query = collect(topic).start({"availableNow": True}, startingOffsets=json.dumps({topic: {"0": 7}}))
    sentence = f"startingOffsets sets offset 7 for {topic}-0, but its end offset is 3"
    with pytest.raises(StreamingQueryException, match=sentence):
        query.awaitTermination(PATIENCE_S)


def test_from_topic_to_topic(
    spark: SparkSession,
    local_cluster: LocalCluster,
    send: Callable[..., None],
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, target = make_topic(2), make_topic(2)
    send(source, range(100), 2)
    bootstrap = {"bootstrap.servers": local_cluster.grpc_bootstrap}
    loaded = (
        spark.readStream.format("ottla")
        .options(**bootstrap, subscribe=source, startingOffsets="earliest")
        .load()
    )
    writing = loaded.selectExpr("value as key", "string(int(string(value)) * 2) as value").writeStream.format(
        "ottla"
    )
    for numbers in (range(0), range(100, 150)):
        send(source, numbers, 2)
        query = (
            writing.options(**bootstrap, topic=target, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
    rows = spark.read.format("ottla").options(**bootstrap, subscribe=target).load()
    got = sorted((int(row.key), int(row.value)) for row in rows.select("key", "value").collect())
    assert got == [(n, n * 2) for n in range(150)]
