"""`ottla produce`: standard input into a topic. [A]

Lines go out as they come: a person at a terminal sees a record arrive after the linger time, a file streams
at full speed. Ctrl-C stops reading; what was read is still sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.progress import Progress

from ottla_cli.bars import progress
from ottla_cli.connecting import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin,
    check_partitions,
    describe_topic,
    run,
    sentence,
    usage,
)
from ottla_cli.failure import Failure
from ottla_cli.formats import unescape
from ottla_cli.input_records import BadInput, NewRecord, Splitter, line_reader, parse_headers, read_json
from ottla_cli.interrupts import INTERRUPTED
from ottla_cli.quantities import parse_size, plural, show_duration, show_size
from ottla_cli.screen import note, print_json
from ottla_cli.stdin_chunks import stdin_chunks
from ottla_client import Delivery, Producer
from ottla_client.errors import RequestError, UnknownTopicOrPartition

#: Deliveries looked back on before reading on; the client's buffer bounds the bytes.
_PENDING_MAX = 100_000


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    all = "all"
    one = "1"
    zero = "0"


class InputFormat(StrEnum):
    lines = "lines"
    json = "json"
    raw = "raw"


@dataclass
class Tally:
    """What became of the records."""

    topic: str
    sent: int = 0
    size_bytes: int = 0
    written: int = 0
    failed: int = 0
    first_error: Exception | None = None
    #: First and last offset by partition.
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    pending: deque[Delivery] = field(default_factory=deque)

    def settle(self) -> None:
        """Count those that are done, from the oldest on."""
        while self.pending and self.pending[0].done():
            delivery = self.pending.popleft()
            error = delivery.exception()
            if error is not None:
                self.failed += 1
                self.first_error = self.first_error or error
                continue
            self.written += 1
            where = delivery.result()
            first, last = self.offsets.get(where.partition, (where.offset, where.offset))
            self.offsets[where.partition] = (min(first, where.offset), max(last, where.offset))


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to write.")],
    format_: Annotated[
        InputFormat, typer.Option("--format", "-f", help="What standard input is; see above.")
    ] = InputFormat.lines,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all records.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Lines are key, this, value: ':' or '\\t'."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of all records; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="To this one; else by key, or spread.", min=0)
    ] = None,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="An empty value (or key) is null, a tombstone.")
    ] = False,
    delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", metavar="TEXT", help="What ends a record.")
    ] = "\\n",
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="How batches are compressed.")
    ] = Compression.none,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Who must have it: all in sync, the leader, or nobody.")
    ] = Acks.all,
    linger_ms: Annotated[float, typer.Option("--linger-ms", help="How long a batch waits for more.")] = 5,
    max_record_bytes: Annotated[
        str, typer.Option("--max-record-bytes", metavar="SIZE", help="Larger records are refused here.")
    ] = "1MiB",
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it is not there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Write records from standard input.

    $ echo hello | ottla produce greetings
    $ ottla produce greetings < lines.txt
    $ ottla produce users -K : -H source=import < users.txt  # ada:Ada Lovelace
    $ ottla produce photos --format raw --key cat.jpg < cat.jpg
    $ ottla consume orders -e --json | ottla produce copy --format json

    What --format says about standard input:
    lines  every line is a value, or a key and a value with --key-separator
    json   one object per line with key, value, headers, partition, timestamp
           (ms), all optional; key_base64 and value_base64 are for bytes; what
           `ottla consume --json` writes fits
    raw    all of it is one record

    A summary goes to standard error; with --json to standard output. Ctrl-C
    stops reading; what was read is still sent.
    """
    fixed = usage(parse_headers, header or [])
    separator = None if key_separator is None else usage(unescape, key_separator)
    given_key = None if key is None else usage(unescape, key)
    limit = usage(parse_size, max_record_bytes)
    ends = usage(unescape, delimiter)
    if not ends or separator == b"":
        raise Failure("--delimiter and --key-separator need at least one character.", exit_code=2)
    if format_ is InputFormat.json and (separator is not None or null):
        raise Failure("--format json says keys and nulls itself; leave out -K and -Z.", exit_code=2)
    read = line_reader(
        key_separator=separator if format_ is InputFormat.lines else None,
        key=given_key,
        headers=fixed,
        null_if_empty=null,
    )
    if format_ is InputFormat.json:
        read = _json_reader(given_key, fixed)
    producer = usage(
        Producer,
        bootstrap,
        compression=str(compression),
        acks=str(acks),
        linger_ms=linger_ms,
        max_request_size=max(1024 * 1024, limit + 4096),
    )
    if sys.stdin.isatty() and not quiet:
        note("One record per line; Ctrl-D ends.", style="dim")
    pieces = _pieces(None if format_ is InputFormat.raw else ends, limit)
    work = _Work(bootstrap, producer, topic, partition, create, pieces, read)
    began = time.monotonic()
    interrupted = run(work.run())
    _report(work.tally, time.monotonic() - began, quiet=quiet, as_json=as_json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _json_reader(key: bytes | None, headers: list[tuple[str, bytes | None]]) -> Callable[[bytes], NewRecord]:
    def read(line: bytes) -> NewRecord:
        record = read_json(line)
        if headers:
            record = record._replace(headers=[*headers, *record.headers])
        return record if record.key is not None or key is None else record._replace(key=key)

    return read


async def _pieces(delimiter: bytes | None, limit_bytes: int) -> AsyncIterator[list[bytes]]:
    """Records of the input as they come, many at once. A last line needs no end. No delimiter: all is one."""
    splitter = None if delimiter is None else Splitter(delimiter, limit_bytes)
    whole: list[bytes] = []
    size = 0
    async for chunk in stdin_chunks():
        if splitter is not None:
            yield splitter.feed(chunk)
            continue
        size += len(chunk)
        if size > limit_bytes:
            raise BadInput(f"The input has more than {limit_bytes} bytes; raise --max-record-bytes.")
        whole.append(chunk)
    if splitter is None:
        yield [b"".join(whole)]
    elif rest := splitter.rest():
        yield [rest]


class _Work:
    def __init__(
        self,
        bootstrap: str,
        producer: Producer,
        topic: str,
        partition: int | None,
        create: bool,
        pieces: AsyncIterator[list[bytes]],
        read: Callable[[bytes], NewRecord],
    ) -> None:
        self._bootstrap = bootstrap
        self._producer = producer
        self._partition = partition
        self._create = create
        self._pieces = pieces
        self._read = read
        self.tally = Tally(topic)

    async def run(self) -> bool:
        """Whether Ctrl-C ended the reading."""
        await self._check_topic()
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def interrupted() -> None:
            stop.set()
            loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C does not wait for acknowledgements

        loop.add_signal_handler(signal.SIGINT, interrupted)
        async with self._producer:
            # On a terminal people type, and a bar would be in their way.
            with progress(shown=sys.stderr.isatty() and not sys.stdin.isatty(), transient=True) as bar:
                await self._send_all(stop, bar)
            await self._producer.flush()
        self.tally.settle()
        return stop.is_set()

    async def _check_topic(self) -> None:
        async with admin(self._bootstrap) as client:
            if self._create and self.tally.topic not in await client.list_topics(include_internal=True):
                await client.create_topics([self.tally.topic])
            found = await describe_topic(client, self.tally.topic)
            check_partitions(found, None if self._partition is None else [self._partition])

    async def _send_all(self, stop: asyncio.Event, bar: Progress) -> None:
        task = bar.add_task(f"to {self.tally.topic}", total=None)
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while True:
                coming = asyncio.ensure_future(anext(self._pieces, None))
                await asyncio.wait((coming, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await coming
                    return
                try:
                    pieces = await coming
                except BadInput as bad:
                    raise Failure(str(bad)) from None
                if pieces is None:
                    return
                await self._send(pieces)
                bar.update(task, completed=self.tally.sent)
                if self.tally.first_error is not None:
                    return  # the rest would most likely fail the same way
        finally:
            stopped.cancel()

    async def _send(self, pieces: list[bytes]) -> None:
        tally, topic, read, send = self.tally, self.tally.topic, self._read, self._producer.send
        for piece in pieces:
            try:
                value, key, headers, partition, timestamp_ms = read(piece)
            except BadInput as bad:
                await self._producer.flush()
                raise Failure(
                    f"Record {tally.sent + 1} of the input is not usable: {bad}. Those before it were written."
                ) from None
            try:
                delivery = await send(
                    topic,
                    value,
                    key,
                    headers=headers,
                    partition=self._partition if partition is None else partition,
                    timestamp_ms=timestamp_ms,
                )
            except UnknownTopicOrPartition as unknown:
                await self._producer.flush()
                raise Failure(
                    f"Record {tally.sent + 1} of the input cannot be written: {unknown.message} Give the topic as "
                    "many partitions, or leave the field `partition` out. Those before it were written."
                ) from None
            tally.sent += 1
            tally.size_bytes += len(value or b"") + len(key or b"")
            tally.pending.append(delivery)
        tally.settle()
        if len(tally.pending) > _PENDING_MAX:
            await self._producer.flush()
            tally.settle()


def _report(tally: Tally, seconds: float, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {
            "topic": tally.topic,
            "records": tally.written,
            "failed": tally.failed,
            "bytes": tally.size_bytes,
            "seconds": round(seconds, 3),
            "partitions": [
                {"partition": number, "first_offset": first, "last_offset": last}
                for number, (first, last) in sorted(tally.offsets.items())
            ],
        }
        print_json(document)
    elif not quiet and not tally.failed:
        note(
            f"{plural(tally.written, 'record')} ({show_size(tally.size_bytes)}) written to {tally.topic} "
            f"in {show_duration(seconds)}{_where(tally)}.",
            style="dim",
        )
    if tally.first_error is not None:
        why = tally.first_error
        text = sentence(why) if isinstance(why, RequestError) else str(why)
        raise Failure(
            f"{plural(tally.failed, 'record')} of {tally.sent:,} could not be written to {tally.topic}: {text}"
        )


def _where(tally: Tally) -> str:
    if len(tally.offsets) != 1:
        return f", {len(tally.offsets)} partitions" if tally.offsets else ""
    number, (first, last) = next(iter(tally.offsets.items()))
    if first < 0:
        return f", partition {number}"
    return f", partition {number} offset {first}" + (f" to {last}" if last > first else "")
