"""`ottla bench`: produce and consume rates and latencies of a cluster, with Ottla's own client. [A]

Each run has one process and one client, so the figures cover client and broker together; `make bench`
compares brokers alone. Without `--topic` each run creates a topic and deletes it afterwards.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from ottla_cli.bench_runs import Load, measure_consume, measure_latency, measure_produce
from ottla_cli.choices import listed
from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, describe_topic, run, usage
from ottla_cli.produce import Acks, Compression
from ottla_cli.quantities import parse_size, show_count, show_duration, show_size
from ottla_cli.screen import note, print_json, show, table
from ottla_client import NewTopic

app = typer.Typer(no_args_is_help=True)

_TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="An existing topic; by default, the run creates one and deletes it."),
]
_Records = Annotated[int, typer.Option("--records", "-n", help="Number of records.", min=1)]
_Size = Annotated[str, typer.Option("--size", "-s", metavar="SIZE", help="Size of each value.")]
_Partitions = Annotated[
    int, typer.Option("--partitions", "-p", help="Partitions of the topic that the run creates.", min=1)
]
_CompressionOption = Annotated[
    Compression,
    typer.Option("--compression", "-z", metavar="CODEC", help=f"Of the batches: {listed(Compression)}."),
]
_AcksOption = Annotated[
    Acks, typer.Option("--acks", help="Acknowledgements: 0 none, 1 the leader, all in-sync replicas.")
]
_BatchSize = Annotated[str, typer.Option("--batch-size", metavar="SIZE", help="Size of a full batch.")]
_Linger = Annotated[float, typer.Option("--linger-ms", help="How long a batch waits for more records.")]


@app.callback()
def _group() -> None:
    """Measure writing, reading and latency with Ottla's own client.

    $ ottla bench produce
    $ ottla bench consume --size 1k
    $ ottla bench latency --acks 1
    """


@app.command()
def produce(
    topic: _TopicOption = None,
    records: _Records = 500_000,
    size: _Size = "100",
    partitions: _Partitions = 1,
    compression: _CompressionOption = Compression.none,
    acks: _AcksOption = Acks.all,
    batch_size: _BatchSize = "256KiB",
    linger_ms: _Linger = 5,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Write records at full speed.

    $ ottla bench produce --records 1000000 --size 100
    $ ottla bench produce --size 1k --compression zstd --acks 1 --json
    """
    load = Load(records, usage(parse_size, size), str(compression), str(acks), linger_ms, _bytes(batch_size))

    async def work() -> dict[str, Any]:
        async with _topic(bootstrap, topic, partitions) as name:
            return await measure_produce(bootstrap, name, load)

    _report("produce", run(work()), as_json=as_json)


@app.command()
def consume(
    topic: _TopicOption = None,
    records: _Records = 500_000,
    size: _Size = "100",
    partitions: _Partitions = 1,
    compression: _CompressionOption = Compression.none,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Read records at full speed: an existing topic from its beginning, or a new one that the run fills first.

    $ ottla bench consume --records 1000000
    $ ottla bench consume --topic orders --records 100000
    """
    load = Load(records, usage(parse_size, size), str(compression), "all", 5, 262_144)

    async def work() -> dict[str, Any]:
        async with _topic(bootstrap, topic, partitions) as name:
            if topic is None:
                await measure_produce(bootstrap, name, load, title="filling")
            return await measure_consume(bootstrap, name, records)

    _report("consume", run(work()), as_json=as_json)


@app.command()
def latency(
    topic: _TopicOption = None,
    records: _Records = 2000,
    size: _Size = "100",
    acks: _AcksOption = Acks.all,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Send one record at a time; measure the time to its acknowledgement and to a consumer.

    $ ottla bench latency
    $ ottla bench latency --records 10000 --size 1k --acks 1 --json
    """
    load = Load(records, usage(parse_size, size), "none", str(acks), 0, 16_384)

    async def work() -> dict[str, Any]:
        async with _topic(bootstrap, topic, 1) as name:
            return await measure_latency(bootstrap, name, load)

    _report("latency", run(work()), as_json=as_json)


def _bytes(text: str) -> int:
    return usage(parse_size, text)


@asynccontextmanager
async def _topic(bootstrap: str, given: str | None, partitions: int) -> AsyncIterator[str]:
    """The given topic, or a new one that is deleted after the run."""
    async with admin(bootstrap) as client:
        if given is not None:
            await describe_topic(client, given)
            yield given
            return
        name = f"ottla-bench-{os.getpid()}-{int(time.time())}"
        await client.create_topics([NewTopic(name, num_partitions=partitions)])
        try:
            yield name
        finally:
            await client.delete_topics([name])


def _report(what: str, found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"bench": what, **found})
        return
    if what == "latency":
        _print_latency(found)
        return
    rows = [
        ("records", show_count(found["records"])),
        ("time", show_duration(found["seconds"])),
        ("rate", f"{show_count(found['records_per_s'])} records/s"),
        ("", f"{show_size(found['bytes_per_s'])}/s"),
    ]
    show(table(("", "#"), rows))


def _print_latency(found: dict[str, Any]) -> None:
    keys = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")
    rows = [
        (name, *(f"{found[row][key]:.3f}" for key in keys))
        for name, row in (("acknowledged", "acknowledged"), ("read by a consumer", "end_to_end"))
    ]
    show(table(("ms", "p50#", "p90#", "p99#", "p99.9#", "max#"), rows))
    note(f"{show_count(found['records'])} records, one at a time, acks {found['acks']}.", style="dim")
