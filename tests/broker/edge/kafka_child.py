"""A process of its own with a Kafka edge over fake services: what hostile input must not bring down.

python kafka_child.py <file for the tracebacks of bugs>     prints its port, ends with its standard input
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TextIO

import structlog
import uvloop

from broker.edge.fakes import FakeBroker
from ottla_broker.config import KafkaEdgeConfig
from ottla_broker.requests import TopicResult

#: Small enough that a hostile frame can be larger, large enough for honest ones.
REQUEST_MAX_BYTES = 4 << 20


async def _nothing(*args: Any, **more: Any) -> None:
    return None


async def _results(topics: Sequence[Any], **more: Any) -> list[TopicResult]:
    return [TopicResult(getattr(topic, "name", topic)) for topic in topics]


async def _result(name: str, *args: Any, **more: Any) -> TopicResult:
    return TopicResult(name)


def _only_bugs(file: TextIO) -> None:
    """Log lines with an exception are our bugs: kept for the test to see. All else is dropped."""

    def keep(logger: Any, method: str, event: Any) -> Any:
        if event.get("exc_info"):
            error = sys.exception() if event["exc_info"] is True else event["exc_info"]
            file.write("".join(traceback.format_exception(error)) + "\n")
            file.flush()
        raise structlog.DropEvent

    structlog.configure(processors=[keep])


async def _main() -> None:
    config = replace(KafkaEdgeConfig(), request_max_bytes=REQUEST_MAX_BYTES, queued_max_bytes=32 << 20)
    broker = FakeBroker(config, stall_s=2.0)
    services = broker.services
    services.topics.auto_create = False
    services.topics.create = services.topics.delete = _results  # type: ignore[method-assign]
    services.topics.grow = _result  # type: ignore[attr-defined]
    services.configs = SimpleNamespace(
        describe_topic=lambda name: [],
        describe_new_topic=lambda own: [],
        describe_broker=lambda broker_id: [],
        alter_topic=_nothing,
        alter_broker=_nothing,
        replace_topic=_nothing,
        describe_group=lambda group: [],
        alter_group=_nothing,
        replace_group=_nothing,
    )
    services.add_topic("t")
    async with broker:
        print(broker.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with open(sys.argv[1], "w") as bugs:
        _only_bugs(bugs)
        uvloop.run(_main())
