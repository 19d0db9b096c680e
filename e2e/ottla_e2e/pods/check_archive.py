"""Counts an archived topic in the files that Spark's file sink has committed, and the records in the topic. [A]

Runs in a pod of Spark's image, without Spark. The last line it prints is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def committed(folder: Path) -> list[str]:
    """The Parquet files of finished micro-batches: a log of `v1` and one JSON object a line, sometimes compacted."""
    found: set[str] = set()
    for log in (folder / "_spark_metadata").iterdir():
        if log.name.removesuffix(".compact").isdigit():
            entries = [json.loads(line) for line in log.read_text().splitlines()[1:] if line]
            found |= {each["path"].removeprefix("file://") for each in entries if each["action"] == "add"}
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--topic", "--parquet"):
        parser.add_argument(name, required=True)
    asked = parser.parse_args()
    import pyarrow.parquet

    from ottla_client import TopicPartition
    from ottla_client.sync import Admin

    places: list[tuple[int, int]] = []
    for path in committed(Path(asked.parquet)):
        table = pyarrow.parquet.ParquetFile(path).read(["partition", "offset"])
        places += zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    with Admin(asked.bootstrap) as admin:
        (topic,) = admin.describe_topics([asked.topic])
        partitions = [TopicPartition(asked.topic, each.partition) for each in topic.partitions]
        records = sum(at.offset for at in admin.list_offsets(dict.fromkeys(partitions, "latest")).values())
    print(json.dumps({"rows": len(places), "different": len(set(places)), "records": records}), flush=True)


if __name__ == "__main__":
    main()
