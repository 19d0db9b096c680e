"""Compares what the activity pipeline wrote, to its topic and to Parquet, with a count of the same events by hand. [A]

Runs in a pod of Spark's image, without Spark. The last line it prints is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

Counts = Counter[tuple[str, str]]


def expected(plan: Any) -> Counts:
    """Events per minute and page, without copies."""
    from jobs import generate

    once = {event["event_id"]: event for event in generate.events(plan)}
    return Counter(
        (event["time"][:16], event["page"]) for event in once.values() if event["page"] is not None
    )


def in_parquet(folder: str) -> Counts:
    import pyarrow.dataset

    rows = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
    found: Counts = Counter()
    for row in rows:
        found[row["window_start"].strftime("%Y-%m-%dT%H:%M"), row["page"]] += row["events"]
    return found


def in_topic(bootstrap: str, topic: str) -> Counts:
    """Written at least once: the last row of a window and page counts."""
    from ottla_client import TopicPartition
    from ottla_client.sync import Admin, Consumer

    with Admin(bootstrap) as admin:
        partitions = [
            TopicPartition(topic, each.partition) for each in admin.describe_topics([topic])[0].partitions
        ]
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    left = {tp: at.offset for tp, at in ends.items() if at.offset > 0}
    found: Counts = Counter()
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(list(left))
        for _ in range(60):
            for record in consumer.poll(timeout_ms=1000):
                row = json.loads(record.value)
                found[row["window_start"][:16], row["page"]] = row["events"]
                tp = TopicPartition(record.topic, record.partition)
                if record.offset + 1 >= left.get(tp, 0):
                    left.pop(tp, None)
            if not left:
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--parquet", required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--span-s", type=int, required=True)
    asked = parser.parse_args()
    sys.path.insert(0, "/opt")
    from jobs import generate

    wanted = expected(generate.Plan(events=asked.events, span_s=asked.span_s))
    parquet, topic = in_parquet(asked.parquet), in_topic(asked.bootstrap, asked.topic)
    answer = {
        "windows": len(wanted),
        "events": sum(wanted.values()),
        "parquet_right": parquet == wanted,
        "topic_right": topic == wanted,
        "parquet_events": sum(parquet.values()),
        "topic_events": sum(topic.values()),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
