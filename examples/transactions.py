"""Reads orders, writes invoices, exactly once: records and offsets are committed together, or not at all.

    python examples/transactions.py 127.0.0.1:9192 orders invoices

If this program dies, the next one fences it, and continues behind the last committed transaction. Readers with
`isolation_level="read_committed"` see each invoice once.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

from ottla_client import Consumer, Producer, TopicPartition


async def main(address: str, source: str, target: str) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)

    async with (
        # One transactional id per worker, the same after a restart.
        Producer(address, transactional_id=f"{source}-to-{target}-0", value_serializer="json") as producer,
        Consumer(
            address,
            group_id=f"{source}-to-{target}",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
            value_deserializer="json",
        ) as consumer,
    ):
        consumer.subscribe([source])
        while not stop.is_set():
            records = await consumer.poll(timeout_ms=500)
            if not records:
                continue
            async with producer.transaction():
                for record in records:
                    invoice = {"order": record.value["id"], "total": record.value["price"] * 1.2}
                    await producer.send(target, invoice, key=record.key)
                done = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
                await producer.send_offsets(done, consumer.group_metadata())
            print(f"committed {len(records)} invoices", flush=True)
    print("stopped", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?", default="127.0.0.1:9192")
    parser.add_argument("source", nargs="?", default="orders")
    parser.add_argument("target", nargs="?", default="invoices")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.address, chosen.source, chosen.target))
