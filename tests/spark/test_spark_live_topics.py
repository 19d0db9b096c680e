"""Streams of topics that are written to while the query starts, runs, stops, fails and starts again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import StreamingQueryException

from ottla_cli.local_cluster import LocalCluster
from ottla_client.sync import Producer
from spark.spark_queries import PATIENCE_S, Collected

pytestmark = pytest.mark.integration

_PARTITIONS = 2
#: Records before the writer starts, in each partition.
_BEFORE = 10


@pytest.fixture
def live_topic(local_cluster: LocalCluster, make_topic: Callable[..., str]) -> Iterator[str]:
    """A topic with `_BEFORE` records in each of its partitions, and about 30 more each second.

    No more than a query of 30 records per trigger can read on a slow machine, where a micro-batch takes a second.
    """
    topic = make_topic(_PARTITIONS)
    stopping = threading.Event()

    def write() -> None:
        with Producer(local_cluster.grpc_bootstrap, linger_ms=0) as producer:
            n = _PARTITIONS * _BEFORE
            while not stopping.wait(0.03):
                producer.send(topic, b"%d" % n, partition=n % _PARTITIONS)
                n += 1

    with Producer(local_cluster.grpc_bootstrap) as producer:
        for n in range(_PARTITIONS * _BEFORE):
            producer.send(topic, b"%d" % n, partition=n % _PARTITIONS, timestamp_ms=10**12 + n)
    writer = threading.Thread(target=write)
    writer.start()
    yield topic
    stopping.set()
    writer.join()


def starts(topic: str) -> dict[str, dict[str, str]]:
    """Options for each way to name a start."""
    soon = str(int(time.time() * 1000) + 3_600_000)
    return {
        "earliest": {"startingOffsets": "earliest"},
        "latest": {"startingOffsets": "latest"},
        "offsets": {"startingOffsets": json.dumps({topic: {"0": 5, "1": -1}})},
        "past": {"startingTimestamp": str(10**12 + 6)},
        "future": {"startingTimestamp": soon, "startingOffsetsByTimestampStrategy": "latest"},
        "each": {
            "startingOffsetsByTimestamp": json.dumps({topic: {"0": 10**12 + 6, "1": int(soon)}}),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    }


#: The first offset of each partition; None where it is the end of the partition at that time.
FIRST = {
    "earliest": (0, 0),
    "latest": (None, None),
    "offsets": (5, None),
    "past": (3, 3),
    "future": (None, None),
    "each": (3, None),
}


def check_first(collected: Collected, topic: str, start: str) -> None:
    """The query read all records from its start to where the checkpoint says, once each."""
    logged = collected.logged()
    began = logged[0]["#startedAt"][topic]
    for partition, expected in enumerate(FIRST[start]):
        first, last = began[str(partition)], logged[-1][topic][str(partition)]
        assert first >= _BEFORE if expected is None else first == expected
        assert collected.offsets.get(partition, []) == list(range(first, last))


#: Each start with a limit, and the default one without.
CASES = [*((start, {"maxOffsetsPerTrigger": "30"}) for start in FIRST), ("latest", {})]
CASE_NAMES = [f"{start}-{'limited' if limit else 'all'}" for start, limit in CASES]


@pytest.mark.parametrize(("start", "limit"), CASES, ids=CASE_NAMES)
def test_a_running_query_reads_each_record_once(
    collect: Callable[[str], Collected], live_topic: str, start: str, limit: dict[str, str]
) -> None:
    collected = collect(live_topic)
    options = {**starts(live_topic)[start], **limit}
    with collected.running(**options) as query:
        collected.wait_for(query, 60)
    count = len(collected.numbers)
    with collected.running(**options) as query:
        collected.wait_for(query, count + 60)
    assert len(collected.numbers) >= count + 60
    # The end of a micro-batch is logged before it runs, and the query may stop between the two.
    collected.all_there_is(**starts(live_topic)[start])
    check_first(collected, live_topic, start)


@pytest.mark.parametrize(("start", "limit"), CASES, ids=CASE_NAMES)
def test_available_now_reads_each_record_once(
    collect: Callable[[str], Collected], live_topic: str, start: str, limit: dict[str, str]
) -> None:
    collected = collect(live_topic)
    for _ in range(2):
        collected.all_there_is(**starts(live_topic)[start], **limit)
    assert len(collected.numbers) > 0
    check_first(collected, live_topic, start)


@pytest.mark.parametrize(
    ("start", "trigger"),
    [
        ("latest", {"availableNow": True}),
        ("latest", {"processingTime": "100 milliseconds"}),
        ("earliest", {"processingTime": "100 milliseconds"}),
    ],
)
def test_a_first_micro_batch_that_failed_is_repeated_from_the_same_start(
    collect: Callable[[str], Collected], live_topic: str, start: str, trigger: dict[str, object]
) -> None:
    collected = collect(live_topic)
    collected.failure = RuntimeError("not this time")
    query = collected.start(trigger, startingOffsets=start)
    with pytest.raises(StreamingQueryException, match="not this time"):
        query.awaitTermination(PATIENCE_S)
    (first,) = collected.logged()
    time.sleep(2)  # For 60 more records.
    collected.all_there_is(startingOffsets=start)
    assert collected.logged()[0] == first
    assert len(collected.numbers) > 50
    check_first(collected, live_topic, start)
