"""Batch reads and writes of a real broker from a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.utils import CapturedException

from ottla_cli.local_cluster import LocalCluster
from ottla_client import TopicPartition
from ottla_client.sync import Admin, Consumer, Producer
from ottla_core.pb import broker_pb2 as pb
from pyspark_ottla.fetch import Lost, PartitionFetch
from pyspark_ottla.lookup import ReadProblem
from pyspark_ottla.options import read_options
from pyspark_ottla.plan import OffsetRange
from pyspark_ottla.reader import BatchReader, FilteringReader

pytestmark = pytest.mark.integration

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, local_cluster: LocalCluster) -> Read:
    def load(**options: str) -> DataFrame:
        given = {"bootstrap.servers": local_cluster.grpc_bootstrap, **options}
        return spark.read.format("ottla").options(**given).load()

    return load


def fill(cluster: LocalCluster, topic: str, count: int, partitions: int = 1, **settings: Any) -> None:
    with Producer(cluster.grpc_bootstrap, **settings) as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n, key=b"k%d" % n, partition=n % partitions, timestamp_ms=10**12 + n)


def test_filters_leave_out_partitions_and_offsets(
    local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(3)
    fill(local_cluster, topic, 300, 3)
    given = {"bootstrap.servers": local_cluster.grpc_bootstrap, "subscribe": topic, "pushFilters": "true"}

    def planned(*filters: Filter) -> dict[int, tuple[int, int]]:
        reader = FilteringReader(read_options(given, streaming=False))
        assert list(reader.pushFilters(list(filters))) == list(filters), "Spark evaluates them again"
        ranges = [part.value for part in reader.partitions()]
        return {each.tp.partition: (each.start, each.end) for each in ranges}

    whole = dict.fromkeys(range(3), (0, 100))
    assert planned() == whole
    assert planned(EqualTo(("value",), b"1"), Not(EqualTo(("partition",), 1))) == whole
    assert planned(EqualTo(("partition",), 1)) == {1: (0, 100)}
    assert planned(In(("partition",), (0, 2, 9)), GreaterThan(("offset",), 97)) == {
        0: (98, 100),
        2: (98, 100),
    }
    assert planned(GreaterThanOrEqual(("offset",), 5), LessThanOrEqual(("offset",), 6)) == dict.fromkeys(
        range(3), (5, 7)
    )
    assert planned(LessThan(("offset",), 3), EqualTo(("topic",), topic))[0] == (0, 3)
    assert planned(EqualTo(("topic",), "another")) == {}
    assert planned(EqualTo(("offset",), 5), GreaterThan(("offset",), 5)) == {}
    # Record n has the time 10**12 + n: 250 is the 83rd of partition 1.
    since = datetime.fromtimestamp((10**12 + 250) / 1000, UTC)
    assert planned(GreaterThanOrEqual(("timestamp",), since)) == {0: (84, 100), 1: (83, 100), 2: (83, 100)}
    assert planned(GreaterThan(("timestamp",), datetime(2100, 1, 1, tzinfo=UTC))) == {}
    assert planned(LessThan(("timestamp",), since)) == whole, "times have no order"


def test_spark_pushes_filters_if_asked(
    spark: SparkSession, read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(3)
    fill(local_cluster, topic, 30, 3)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = read(subscribe=topic, pushFilters="true").where("partition = 1 and offset >= 8")
        assert found.rdd.getNumPartitions() == 1
        assert sorted(int(row.value) for row in found.collect()) == [25, 28]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_rows_are_what_was_written(
    read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str], compression: str
) -> None:
    topic = make_topic(3)
    sent = []
    with Producer(local_cluster.grpc_bootstrap, compression=compression, batch_size=3000) as producer:
        for n in range(1000):
            key = None if n % 3 == 0 else b"key-%d" % n
            value = None if n % 7 == 0 else bytes([n % 256]) * (n % 300)
            headers = [("n", b"%d" % n), ("n", None)] if n % 5 == 0 else []
            promise = producer.send(topic, value, key, headers=headers, timestamp_ms=1_700_000_000_000 + n)
            sent.append((promise, key, value, headers or None, 1_700_000_000 + n / 1000))
    rows = (
        read(subscribe=topic, includeHeaders="true").selectExpr("*", "double(timestamp) as seconds").collect()
    )
    got = {
        (row.topic, row.partition, row.offset): (
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.headers and [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers],
            row.seconds,
        )
        for row in rows
    }
    assert got == {
        (topic, promise.result().partition, promise.result().offset): (
            key,
            value,
            headers,
            pytest.approx(seconds),
        )
        for promise, key, value, headers, seconds in sent
    }
    assert {row.timestampType for row in rows} == {0}


def test_a_partition_is_cut_for_more_tasks(
    read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    fill(local_cluster, topic, 1000, 2, batch_size=500)
    frame = read(subscribe=topic, minPartitions="8")
    assert frame.rdd.getNumPartitions() == 8
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(1000))


def test_between_offsets_and_times(
    read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    fill(local_cluster, topic, 100, 2)

    def numbers(**options: str) -> list[int]:
        return sorted(int(row.value) for row in read(subscribe=topic, **options).select("value").collect())

    start, end = {topic: {"0": 10, "1": -2}}, {topic: {"0": 12, "1": 3}}
    assert numbers(startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)) == [1, 3, 5, 20, 22]
    assert numbers(startingTimestamp=str(10**12 + 95)) == [95, 96, 97, 98, 99]
    assert numbers(endingTimestamp=str(10**12 + 3)) == [0, 1, 2]
    assert read(assign=json.dumps({topic: [1]})).count() == 50
    assert read(subscribePattern=topic[:-1] + ".").count() == 100


def test_an_empty_topic_has_no_rows(read: Read, make_topic: Callable[..., str]) -> None:
    assert read(subscribe=make_topic(2)).collect() == []


def test_a_limit_ends_a_read_early(
    read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    fill(local_cluster, topic, 5000, batch_size=1000)
    assert [int(row.value) for row in read(subscribe=topic).limit(3).collect()] == [0, 1, 2]


def test_expired_offsets(
    read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str], admin: Admin
) -> None:
    topic = make_topic(1)
    fill(local_cluster, topic, 100)
    admin.delete_records({TopicPartition(topic, 0): 40})
    start = json.dumps({topic: {"0": 5}})
    with pytest.raises(AnalysisException, match=f"Offsets 5 to 39 of {topic}-0 have expired.*failOnDataLoss"):
        read(subscribe=topic, startingOffsets=start).count()
    assert read(subscribe=topic, startingOffsets=start, failOnDataLoss="false").count() == 60


@pytest.mark.parametrize(
    ("wanted", "topic_id", "sentence"),
    [
        ((50, 60), "", "-0 ends before offset 50: records at its end were lost; set failOnDataLoss"),
        ((0, 10), "another", "was deleted and created again before .*-0 was read; set failOnDataLoss"),
    ],
)
def test_records_that_were_lost_while_a_task_waited(
    local_cluster: LocalCluster,
    make_topic: Callable[..., str],
    wanted: tuple[int, int],
    topic_id: str,
    sentence: str,
) -> None:
    topic = make_topic(1)
    fill(local_cluster, topic, 10)
    planned = InputPartition(OffsetRange(TopicPartition(topic, 0), *wanted, topic_id))
    given = {"bootstrap.servers": local_cluster.grpc_bootstrap, "subscribe": topic}
    with pytest.raises(ReadProblem, match=sentence):
        list(BatchReader(read_options(given, streaming=False)).read(planned))
    careless = read_options({**given, "failOnDataLoss": "false"}, streaming=False)
    assert list(BatchReader(careless).read(planned)) == []


def test_a_topic_that_is_deleted_while_a_task_waits(local_cluster: LocalCluster) -> None:
    planned = InputPartition(OffsetRange(TopicPartition("no-such-topic", 0), 0, 10, "id"))
    given = {"bootstrap.servers": local_cluster.grpc_bootstrap, "subscribe": "no-such-topic"}
    with pytest.raises(ReadProblem, match=r"no-such-topic-0 no longer exists.*set failOnDataLoss"):
        list(BatchReader(read_options(given, streaming=False)).read(planned))
    careless = read_options({**given, "failOnDataLoss": "false"}, streaming=False)
    assert list(BatchReader(careless).read(planned)) == []


def test_a_topic_that_is_created_again_while_it_is_read(
    local_cluster: LocalCluster, make_topic: Callable[..., str], admin: Admin
) -> None:
    """A fetch names a topic and not its id, so what was read is confirmed at the end."""
    topic = make_topic(1)
    (described,) = admin.describe_topics([topic])
    fill(local_cluster, topic, 10)
    wanted = OffsetRange(TopicPartition(topic, 0), 0, 10, described.topic_id)
    chunks = PartitionFetch(local_cluster.grpc_bootstrap, wanted, read_committed=False, timeout_s=60).chunks()
    next(chunks)
    admin.delete_topics([topic])
    admin.create_topics([topic])
    with pytest.raises(Lost, match=f"Topic '{topic}' was deleted while {topic}-0 was read"):
        list(chunks)


async def _nothing_left(_: PartitionFetch) -> pb.FetchedPartition:
    return pb.FetchedPartition(high_watermark=10, last_stable_offset=10)


def test_an_end_that_was_compacted_away_is_not_waited_for(
    local_cluster: LocalCluster, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tombstone may be the last record of a topic, and goes as well, some day."""
    monkeypatch.setattr(PartitionFetch, "_answer", _nothing_left)
    wanted = OffsetRange(TopicPartition(make_topic(1), 0), 5, 10)
    fetch = PartitionFetch(local_cluster.grpc_bootstrap, wanted, read_committed=False, timeout_s=60)
    assert [chunk.batches for chunk in fetch.chunks()] == [[]]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "no-such-topic"}, "Topic 'no-such-topic' does not exist at 127"),
        ({"subscribe": "t", "startingOfset": "earliest"}, r"did you mean startingOffsets\?"),
        ({"subscribe": "t", "bootstrap.servers": "nowhere"}, "'nowhere' is not an address"),
        ({"subscribe": "t", "bootstrap.servers": "127.0.0.1:1"}, "Nothing listens at 127.0.0.1:1"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(read: Read, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(AnalysisException, match=sentence):
        read(**options).count()


def test_the_kafka_port_is_recognised(
    read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    port = int(local_cluster.kafka_bootstrap.rsplit(":", 1)[1])
    with pytest.raises(
        AnalysisException, match=f"speaks the Kafka protocol.*gRPC: try 127.0.0.1:{port + 100}"
    ):
        read(subscribe=make_topic(), **{"bootstrap.servers": local_cluster.kafka_bootstrap}).count()


# --- writing ---


def test_what_is_written_comes_back(
    spark: SparkSession, read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    frame = spark.range(500).selectExpr(
        "string(id) as key",
        "case when id % 10 = 0 then null else string(id * 2) end as value",
        "int(id % 2) as partition",
        "case when id % 4 = 0 then array(struct('h' as key, binary(string(id)) as value)) end as headers",
        "'ignored' as offset",
    )
    writing = frame.write.format("ottla").option("kafka.bootstrap.servers", local_cluster.grpc_bootstrap)
    writing.option("topic", topic).option("compression", "lz4").mode("append").save()
    got = {
        (row.key, row.value, row.partition, None if row.headers is None else bytes(row.headers[0].value))
        for row in read(subscribe=topic, includeHeaders="true")
        .selectExpr("string(key) key", "string(value) value", "partition", "headers")
        .collect()
    }
    assert got == {
        (
            str(n),
            None if n % 10 == 0 else str(n * 2),
            n % 2,
            str(n).encode() if n % 4 == 0 else None,
        )
        for n in range(500)
    }


def test_timestamps_are_kept_where_that_is_wanted(
    spark: SparkSession, read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    rows = spark.sql("select 'a' as value, timestamp_millis(1234567890123) as timestamp")
    for wanted in ("true", "false"):
        rows.write.format("ottla").mode("append").options(
            **{"bootstrap.servers": local_cluster.grpc_bootstrap, "topic": topic, "writeTimestamps": wanted}
        ).save()
    times = read(subscribe=topic).orderBy("offset").selectExpr("unix_millis(timestamp) as ms").collect()
    assert times[0].ms == 1234567890123 and times[1].ms > 1_600_000_000_000


def test_keys_go_where_other_clients_put_them(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    """By a column for the topic, and the default partitioner."""
    topic = make_topic(4)
    frame = spark.range(100).selectExpr(f"'{topic}' as topic", "string(id) as key", "string(id) as value")
    frame.write.format("ottla").option("bootstrap.servers", local_cluster.grpc_bootstrap).mode(
        "append"
    ).save()
    fill(local_cluster, topic, 0)
    with Producer(local_cluster.grpc_bootstrap) as producer:
        placed = {n: producer.send(topic, None, b"%d" % n).result(10).partition for n in range(100)}
    with Consumer(local_cluster.grpc_bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, n) for n in range(4)])
        seen: list[tuple[bytes, int]] = []
        while len(seen) < 200:
            seen += [(record.key, record.partition) for record in consumer.poll(5000)]
    assert sorted(seen) == sorted([(b"%d" % n, partition) for n, partition in placed.items()] * 2)


def test_values_as_large_as_the_topic_takes(
    spark: SparkSession, read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    """More than a megabyte, which is the client's own limit unless it is told otherwise."""
    large, plain = make_topic(1, max_message_bytes=str(4 * 1024 * 1024)), make_topic(1)
    frame = spark.range(2).selectExpr("repeat('x', 1536 * 1024) as value")
    writing = frame.write.format("ottla").option("bootstrap.servers", local_cluster.grpc_bootstrap)
    writing.option("topic", large).mode("append").save()
    lengths = read(subscribe=large).selectExpr("length(value) as length").collect()
    assert [row.length for row in lengths] == [1536 * 1024] * 2
    with pytest.raises(CapturedException, match=r"max\.message\.bytes"):
        writing.option("topic", plain).mode("append").save()
    with pytest.raises(CapturedException, match="larger than max_request_size=1048576"):
        writing.option("topic", large).option("kafka.max.request.size", "1048576").mode("append").save()


def test_without_a_mode_the_error_says_which_one(spark: SparkSession, local_cluster: LocalCluster) -> None:
    """Spark refuses its own default mode before the data source is asked."""
    frame = spark.range(1).selectExpr("string(id) as value")
    writing = frame.write.format("ottla").option("bootstrap.servers", local_cluster.grpc_bootstrap)
    with pytest.raises(CapturedException, match='use either the "Append"'):
        writing.option("topic", "t").save()


@pytest.mark.parametrize(
    ("columns", "mode", "options", "sentence"),
    [
        (
            "string(id) as words",
            "append",
            {"topic": "t"},
            "The column value is missing; the columns are words",
        ),
        ("id as value", "append", {"topic": "t"}, "Column value must be binary or string; it is bigint"),
        ("string(id) as value", "append", {}, "Name a topic"),
        ("string(id) as value", "overwrite", {"topic": "t"}, "cannot be overwritten; write with mode"),
        ("string(id) as value", "append", {"topic": "t", "compresion": "lz4"}, "did you mean compression"),
        ("string(null) as topic, 'v' as value", "append", {}, "column topic is null"),
        (
            "'v' as value, array(named_struct('key', string(null), 'value', binary('x'))) as headers",
            "append",
            {"topic": "t"},
            "header without a key",
        ),
    ],
)
def test_unwritable_rows_are_reported(
    spark: SparkSession,
    local_cluster: LocalCluster,
    columns: str,
    mode: str,
    options: dict[str, str],
    sentence: str,
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", ", 1))
    writing = frame.write.format("ottla").option("bootstrap.servers", local_cluster.grpc_bootstrap)
    with pytest.raises(CapturedException, match=sentence):
        writing.options(**options).mode(mode).save()


def test_read_committed_rows_are_those_of_committed_transactions(
    read: Read, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    with Producer(local_cluster.grpc_bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"committed")
        producer.begin()
        producer.send(topic, b"aborted").result()
        producer.abort()
        producer.begin()
        producer.send(topic, b"open").result()
        for option in ("isolationLevel", "kafka.isolation.level"):
            rows = read(subscribe=topic, **{option: "read_committed"}).collect()
            assert [bytes(row.value) for row in rows] == [b"committed"]
        rows = read(subscribe=topic).collect()
        assert [bytes(row.value) for row in rows] == [b"committed", b"aborted", b"open"]
