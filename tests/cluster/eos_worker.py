"""The process that `eos_chaos` kills: copies a topic to another, partition by partition, with `ExactlyOnce`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal

from ottla_client import ConsumerRecord, ExactlyOnce, ProducerRecord


async def copy(options: argparse.Namespace) -> None:
    def transform(record: ConsumerRecord) -> ProducerRecord:
        return ProducerRecord(options.target, record.value, partition=record.partition)

    worker = ExactlyOnce(
        options.bootstrap,
        [options.source],
        transform,
        group_id=options.group,
        transactional_id=options.name,
        transaction_timeout_ms=5000,
        max_poll_records=20,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await worker.run(stop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--bootstrap", "--source", "--target", "--group", "--name"):
        parser.add_argument(option, required=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(copy(parser.parse_args()))
