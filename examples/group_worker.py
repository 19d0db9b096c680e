"""A worker of a consumer group: each record is processed at least once, and SIGTERM loses nothing.

    python examples/group_worker.py 127.0.0.1:9192 orders billing

Start as many as the topic has partitions. A record that cannot be processed goes to `<topic>.dead`, with the reason in
a header, so that it does not stop the records behind it. Offsets are committed after processing, so a worker that is
killed repeats at most the records of its last poll: make `process` idempotent (docs/idempotent-processing.md).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence

from ottla_client import Consumer, ConsumerRecord, Producer, RebalanceListener, TopicPartition


async def process(record: ConsumerRecord) -> None:
    """Your work. An exception sends the record to the dead letters."""
    order = json.loads(record.value)
    print(f"order {order['id']} from {record.partition}:{record.offset}", flush=True)


def announce(partitions: Sequence[TopicPartition]) -> None:
    print(f"assigned {sorted(tp.partition for tp in partitions)}", flush=True)


async def work(address: str, topic: str, group: str) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)

    async with (
        Producer(address, client_id=f"{group}-dead-letters") as dead_letters,
        Consumer(
            address,
            client_id=f"{group}-worker",
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        consumer.subscribe([topic], RebalanceListener(on_assigned=announce))
        while not stop.is_set():
            records = await consumer.poll(timeout_ms=500)
            for record in records:
                try:
                    await process(record)
                except Exception as error:
                    reason = ("error", str(error).encode())
                    headers = [*record.headers, reason]
                    await dead_letters.send_and_wait(
                        f"{topic}.dead", record.value, record.key, headers=headers
                    )
            if records:
                await consumer.commit()
    # Leaving the block has left the group, so that the others take over at once.
    print("stopped", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?", default="127.0.0.1:9192")
    parser.add_argument("topic", nargs="?", default="orders")
    parser.add_argument("group", nargs="?", default="billing")
    chosen = parser.parse_args()
    asyncio.run(work(chosen.address, chosen.topic, chosen.group))
