"""How the logs here were made: the scenario on an Apache Kafka, and what its coordinators wrote.

`python tests/golden/coordinators/capture.py`; needs Java and Kafka's jars (see `ottla_bench`).
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from golden.coordinators import scenario  # noqa: E402
from ottla_bench.kafka_server import KafkaServer  # noqa: E402

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    # Else a second between two assignments of a group.
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


def main() -> None:
    with KafkaServer(overrides=SETTINGS) as kafka:
        asyncio.run(scenario.run(kafka.port))
        time.sleep(1)
        for topic in ("__consumer_offsets", "__transaction_state"):
            (segment,) = (kafka.data_folder / f"{topic}-0").glob("*.log")
            shutil.copy(segment, HERE / f"kafka-4.3{topic}.log")


if __name__ == "__main__":
    main()
