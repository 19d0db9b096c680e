"""Kafka Streams, as shipped: its word count with exactly_once_v2 counts each word once, whoever is killed.

It needs transactions (v2, in a client of this version), transactional offsets, internal topics that the client
creates and from which it deletes records, and readers that stop at the last stable offset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.java_application import WITHIN_S, JavaApplication, properties
from ottla_bench.kafka_jars import STREAMS_WORD_COUNT
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.java, pytest.mark.timeout(300)]

#: The names are those in the class.
SOURCE, SINK = "streams-plaintext-input", "streams-wordcount-output"
PARTITIONS = 2
WORDS = ("alle", "meine", "entchen", "schwimmen", "auf", "dem", "see")


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as running:
        admin = AdminClient({"bootstrap.servers": running.kafka_bootstrap, "log_level": 0})
        wanted = [
            NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in (SOURCE, SINK)
        ]
        for created in admin.create_topics(wanted).values():
            created.result(WITHIN_S)
        yield running


class Words:
    """Writes some more sentences each time it is asked how the counting goes."""

    def __init__(self, cluster: LocalCluster) -> None:
        client = {"bootstrap.servers": cluster.kafka_bootstrap, "log_level": 0}
        self._producer = Producer({**client, "enable.idempotence": True, "linger.ms": 0})
        self.reader = Consumer({**client, "group.id": "unused", "isolation.level": "read_committed"})
        self.reader.assign([TopicPartition(SINK, partition, 0) for partition in range(PARTITIONS)])
        self.written: Counter[str] = Counter()
        #: What the output says of each word, in order.
        self.counts: dict[str, list[int]] = defaultdict(list)
        self._sentences = 0

    def write(self) -> None:
        words = [WORDS[self._sentences % len(WORDS)], "all"]
        self._producer.produce(SOURCE, " ".join(words).encode(), partition=self._sentences % PARTITIONS)
        self._producer.poll(0)
        self.written.update(words)
        self._sentences += 1

    def flush(self) -> None:
        assert self._producer.flush(WITHIN_S) == 0

    def read(self) -> int:
        """How many sentences have been counted, as far as the output is read."""
        for message in self.reader.consume(1000, timeout=0.05):
            if message.error() is None:
                word, count = message.key() or b"", message.value() or b""
                self.counts[word.decode()].append(int.from_bytes(count, "big"))
        return max(self.counts["all"], default=0)

    def all_counted(self) -> bool:
        self.read()
        return sum(map(len, self.counts.values())) >= self.written.total()

    def more(self, goal: int) -> bool:
        for _ in range(5):
            self.write()
        return self.read() >= goal


def test_each_word_is_counted_once_while_streams_and_a_leader_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    settings = {
        "bootstrap.servers": cluster.kafka_bootstrap,
        "application.id": "word-count",
        "processing.guarantee": "exactly_once_v2",
        "state.dir": tmp_path / "state",
        "commit.interval.ms": 50,
        # Each count is written; of a word that comes n times, 1 to n.
        "statestore.cache.max.bytes": 0,
        "auto.offset.reset": "earliest",
        "replication.factor": 3,
        "session.timeout.ms": 6000,
        # The 70 MB of RocksDB's library stay packed.
        "dsl.store.suppliers.class": (
            "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"
        ),
    }
    word_count = (tmp_path, STREAMS_WORD_COUNT, properties(tmp_path, "streams", settings))
    words = Words(cluster)
    with closing(words.reader):
        with JavaApplication(*word_count) as killed:
            killed.until(lambda: words.more(50), "the first counts")
            killed.kill()
        with JavaApplication(*word_count) as running:
            goal = words.read() + 100
            running.until(lambda: words.more(goal), "counts after a kill of Streams")
            topics = words.reader.list_topics(SINK, timeout=WITHIN_S).topics
            cluster.kill(topics[SINK].partitions[0].leader)
            goal = words.read() + 100
            running.until(lambda: words.more(goal), "counts after a kill of a leader")
            words.flush()
            running.until(words.all_counted, "all counts")
    assert set(words.counts) == set(words.written)
    for word, counts in words.counts.items():
        assert counts == list(range(1, words.written[word] + 1)), word
