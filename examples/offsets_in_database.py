"""Store the offsets of a consumer in your own database, together with what the records change there: exactly once.

Each batch of records and the offsets after it are one transaction of the database (here SQLite). A worker that is
killed at any point starts again where its last transaction ended, so no record is applied twice or left out. The group
decides who reads which partition; its committed offsets are not used.

    python examples/offsets_in_database.py payments balances.db       # until Ctrl-C
    python examples/offsets_in_database.py payments balances.db --records 1000

The example adds up amounts per account: the key of a record is an account, its value an amount. Any number of workers
may share the database.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Sequence

from ottla_client import ConsumerRecord, RebalanceListener, TopicPartition
from ottla_client.sync import Consumer

TABLES = """
CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, amount INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (
    topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)
);
"""


class Taken(Exception):
    """Another worker has stored offsets of the partition since this one read them."""


class Store:
    """The database: balances, and the offset of the next record of each partition."""

    def __init__(self, path: str) -> None:
        # Listeners are called from the client's thread, while poll() waits for them.
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._db.executescript(TABLES)

    def next_offset(self, tp: TopicPartition) -> int:
        """Where to go on; 0 for a new partition. Records that retention has deleted are skipped by the consumer."""
        row = self._db.execute(
            "SELECT next_offset FROM offsets WHERE topic = ? AND partition = ?", (tp.topic, tp.partition)
        ).fetchone()
        return int(row[0]) if row else 0

    def apply(self, records: Sequence[ConsumerRecord], positions: dict[TopicPartition, int]) -> None:
        """All of it or nothing. `positions` has the offset that the database had when this worker read it last."""
        after: dict[TopicPartition, int] = {}
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for record in records:
                self._db.execute(
                    "INSERT INTO balances VALUES (?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                    (record.key, record.value),
                )
                after[TopicPartition(record.topic, record.partition)] = record.offset + 1
            for tp, offset in after.items():
                # A worker that lost the partition without noticing (a long pause) must not write: the offset has moved.
                if self.next_offset(tp) != positions[tp]:
                    raise Taken(f"{tp} is read by another worker.")
                self._db.execute(
                    "INSERT INTO offsets VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset",
                    (tp.topic, tp.partition, offset),
                )
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        positions.update(after)


def work(bootstrap: str, topic: str, store: Store, records_max: int | None = None) -> int:
    """Apply records until Ctrl-C, or until `records_max` were applied; returns how many."""
    positions: dict[TopicPartition, int] = {}
    applied = 0
    consumer = Consumer(
        bootstrap,
        group_id=f"balances-of-{topic}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        key_deserializer="str",
        value_deserializer="int",
    )

    def assigned(partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            positions[tp] = store.next_offset(tp)
            consumer.seek(tp, positions[tp])

    def removed(partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            positions.pop(tp, None)

    with consumer:
        consumer.subscribe([topic], RebalanceListener(on_assigned=assigned, on_revoked=removed))
        while records_max is None or applied < records_max:
            records = consumer.poll(timeout_ms=500)
            if not records:
                continue
            try:
                store.apply(records, positions)
                applied += len(records)
            except Taken:
                # The next poll finds out about the rebalance; until then read again what the database lacks.
                assigned(list(consumer.assignment()))
    return applied


def main() -> None:
    parser = argparse.ArgumentParser(description="Add up amounts per account, exactly once")
    parser.add_argument("topic")
    parser.add_argument("database", help="a file of SQLite")
    parser.add_argument("--bootstrap", default="127.0.0.1:9192")
    parser.add_argument("--records", type=int, help="stop after so many")
    options = parser.parse_args()
    try:
        applied = work(options.bootstrap, options.topic, Store(options.database), options.records)
    except KeyboardInterrupt:
        return
    print(f"{applied} records applied.")


if __name__ == "__main__":
    main()
