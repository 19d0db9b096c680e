"""Exactly-once writes with real brokers: tasks and the driver's steps without a JVM, then Spark itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession

from ottla_cli.local_cluster import LocalCluster
from ottla_client import TopicPartition
from ottla_client.sync import Admin, Consumer, Producer
from pyspark_ottla.decisions import DecisionProblem, batch_sink, named_sink, prefix_of, stream_sink
from pyspark_ottla.exactly_once import settle
from pyspark_ottla.options import WriteOptions, write_options
from pyspark_ottla.settle import Step
from pyspark_ottla.task_write import Written, write_rows
from spark.spark_chaos import campaign
from spark.spark_queries import PATIENCE_S, Collected

pytestmark = pytest.mark.integration


class Killed(BaseException):
    pass


class Sink:
    """One query (or job) that writes to one topic, without Spark around it."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        self.topic, self.name, self._bootstrap = topic, name, bootstrap
        self._options: WriteOptions = write_options({"bootstrap.servers": bootstrap, "topic": topic})

    def task(self, batch: int, *values: int) -> Written:
        rows = [pa.record_batch({"value": [b"%d" % n for n in values]})] if values else []
        return write_rows(self._options, {"value": 0}, iter(rows), (self.name, batch))

    def commit(self, batch: int, *messages: Written | None, die_at: Step | None = None) -> None:
        def at(step: Step) -> None:
            if step is die_at:
                raise Killed

        settle(self._options, self.name, batch, messages, commit=True, at=at)

    def abort(self, batch: int, *messages: Written | None) -> None:
        settle(self._options, self.name, batch, messages, commit=False)

    def visible(self) -> list[int]:
        return visible(self._bootstrap, self.topic)


def visible(bootstrap: str, topic: str) -> list[int]:
    """What a read_committed reader sees; all of the log must be readable to it."""
    found: Counter[int] = Counter()
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        while consumer.position(tp) < end:
            found.update(int(record.value) for record in consumer.poll(timeout_ms=100))
    return sorted(found.elements())


def assert_nothing_is_open(admin: Admin, sink: Sink) -> None:
    assert {each.state for each in admin.list_transactions(prefix=prefix_of(sink.name))} <= {"Empty"}


@pytest.fixture(
    params=[lambda: stream_sink(str(uuid4())), lambda: named_sink(f"a-{uuid4()}")], ids=["stream", "named"]
)
def sink(request: pytest.FixtureRequest, local_cluster: LocalCluster, make_topic: Callable[..., str]) -> Sink:
    return Sink(local_cluster.grpc_bootstrap, make_topic(1), request.param())


@pytest.fixture
def job(local_cluster: LocalCluster, make_topic: Callable[..., str]) -> Sink:
    return Sink(local_cluster.grpc_bootstrap, make_topic(1), batch_sink(uuid4().hex))


def test_rows_are_visible_when_the_batch_is_committed(sink: Sink, admin: Admin) -> None:
    first = [sink.task(0, 1, 2), sink.task(0), sink.task(0, 3)]
    assert sink.visible() == []
    sink.commit(0, *first)
    assert sink.visible() == [1, 2, 3]
    assert_nothing_is_open(admin, sink)


def test_a_replayed_batch_and_other_attempts_stay_invisible(sink: Sink, admin: Admin) -> None:
    chosen, duplicate = sink.task(0, 1), sink.task(0, 1)
    assert duplicate.transaction is not None
    sink.commit(0, chosen)
    assert_nothing_is_open(admin, sink)
    late = sink.task(0, 1)
    assert late.transaction is None, "a task of a decided batch writes nothing"
    sink.commit(0, late)
    sink.commit(1, sink.task(1, 2))
    assert sink.visible() == [1, 2]


@pytest.mark.parametrize("step", list(Step))
def test_a_driver_that_dies_at_a_step_is_continued(step: Step, sink: Sink, admin: Admin) -> None:
    with pytest.raises(Killed):
        sink.commit(0, sink.task(0, 1), sink.task(0, 2), die_at=step)
    again = [sink.task(0, 1), sink.task(0, 2)]
    sink.commit(0, *again)
    sink.commit(1, sink.task(1, 3))
    assert sink.visible() == [1, 2, 3]
    assert_nothing_is_open(admin, sink)


def test_an_aborted_batch_is_run_again(sink: Sink, admin: Admin) -> None:
    sink.abort(0, sink.task(0, 1), None)
    assert sink.visible() == []
    sink.commit(0, sink.task(0, 1), sink.task(0, 2))
    assert sink.visible() == [1, 2]
    assert_nothing_is_open(admin, sink)


def test_an_older_checkpoint_is_refused(sink: Sink) -> None:
    early = sink.task(0, 9)
    sink.commit(3, sink.task(3, 1))
    with pytest.raises(
        DecisionProblem, match="has written batch 3 already, and its checkpoint asks for batch 0"
    ):
        sink.commit(0, early)
    assert sink.visible() == [1]


def test_a_transaction_that_an_operator_aborts_fails_the_batch(sink: Sink, admin: Admin) -> None:
    made = [sink.task(0, 1), sink.task(0, 2)]
    assert made[0].transaction is not None
    admin.fence_producers([made[0].transaction.transactional_id])
    with pytest.raises(DecisionProblem, match="were aborted before it was committed"):
        sink.commit(0, *made)
    sink.abort(0, *made)
    assert sink.visible() == []
    sink.commit(0, sink.task(0, 1), sink.task(0, 2))
    assert sink.visible() == [1, 2]


def test_a_failed_job_leaves_nothing_and_stops_its_tasks(job: Sink, admin: Admin) -> None:
    job.task(0, 1)  # its message was lost
    job.abort(0, job.task(0, 2), None)
    assert job.task(0, 3).transaction is None
    assert job.visible() == []
    assert_nothing_is_open(admin, job)


def test_the_next_batch_write_finishes_one_whose_driver_died(job: Sink, local_cluster: LocalCluster) -> None:
    with pytest.raises(Killed):
        job.commit(0, job.task(0, 1), die_at=Step.DECIDED)
    assert job.visible() == []
    other = Sink(local_cluster.grpc_bootstrap, job.topic, batch_sink(uuid4().hex))
    other.commit(0, other.task(0, 2))
    assert job.visible() == [1, 2]


# --- with Spark ---


def test_a_batch_write_is_visible_as_a_whole_or_not_at_all(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    options = {"bootstrap.servers": local_cluster.grpc_bootstrap, "topic": topic}

    def failing(batches: Iterator[Any]) -> Iterator[Any]:  # Spark's workers cannot import this module
        for batch in batches:
            if b"7" in batch.column(0).to_pylist():
                raise ValueError("row 7")
            yield batch

    rows = spark.range(0, 8, 1, 4).selectExpr("binary(string(id)) as value")
    with pytest.raises(PythonException, match="row 7"):
        rows.mapInArrow(failing, "value binary").write.format("ottla").options(**options).mode(
            "append"
        ).save()
    assert visible(local_cluster.grpc_bootstrap, topic) == []
    rows.write.format("ottla").options(**options).mode("append").save()
    assert visible(local_cluster.grpc_bootstrap, topic) == list(range(8))


def test_a_batch_write_that_is_repeated_with_its_number_adds_nothing(
    spark: SparkSession, local_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    options = {"bootstrap.servers": local_cluster.grpc_bootstrap, "topic": topic, "sinkId": topic}

    def write(batch: int, first: int) -> None:
        rows = spark.range(first, first + 2, 1, 2).selectExpr("binary(string(id)) as value")
        rows.write.format("ottla").options(**options, batchId=str(batch)).mode("append").save()

    for batch, first in ((0, 0), (0, 0), (1, 2), (1, 2)):
        write(batch, first)
    assert visible(local_cluster.grpc_bootstrap, topic) == [0, 1, 2, 3]
    with pytest.raises(PySparkException, match="has written batch 1 already"):
        write(0, 0)
    assert visible(local_cluster.grpc_bootstrap, topic) == [0, 1, 2, 3]


def test_a_stream_of_committed_rows_ends_before_an_open_transaction(
    local_cluster: LocalCluster,
    make_topic: Callable[..., str],
    collect: Callable[[str], Collected],
) -> None:
    topic = make_topic(1)
    collected = collect(topic)
    with Producer(local_cluster.grpc_bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"1")
        producer.begin()
        producer.send(topic, b"2").result()
        with Producer(local_cluster.grpc_bootstrap) as other:
            other.send(topic, b"3").result()
        collected.all_there_is(**{"kafka.isolation.level": "read_committed"})
        assert collected.numbers == [1]
        producer.abort()
    collected.all_there_is(**{"kafka.isolation.level": "read_committed"})
    assert collected.numbers == [1, 3]


def test_a_query_whose_checkpoint_is_an_older_copy_stops(
    spark: SparkSession,
    local_cluster: LocalCluster,
    make_topic: Callable[..., str],
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    source, target = make_topic(1), make_topic(1)
    brokers = {"bootstrap.servers": local_cluster.grpc_bootstrap}

    def copy() -> None:
        query = (
            spark.readStream.format("ottla")
            .options(**brokers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="2")
            .load()
            .writeStream.format("ottla")
            .options(**brokers, topic=target, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)

    send(source, range(4))
    copy()
    assert visible(local_cluster.grpc_bootstrap, target) == [0, 1, 2, 3]
    for folder in ("commits", "offsets"):
        for each in (tmp_path / "checkpoint" / folder).iterdir():
            each.unlink()
    with pytest.raises(StreamingQueryException, match="has written batch 1 already"):
        copy()
    assert visible(local_cluster.grpc_bootstrap, target) == [0, 1, 2, 3]


@pytest.mark.timeout(300)
def test_a_job_whose_executor_and_driver_are_killed_copies_each_row_once(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    wanted = {"executor": 1, "driver": 1}
    few = {"more": ["--executors", "1"], "ahead": 60}  # each executor is one more JVM to start
    assert campaign(local_cluster, tmp_path, 2, random.Random(3), 1, weights=wanted, **few) == wanted
