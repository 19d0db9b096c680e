"""`ottla produce`: write standard input to a topic. [A]

Lines are sent as they arrive: from a terminal, a record is sent after the linger time; a file streams
at full speed. Ctrl-C stops reading; records that were read are still sent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from ottla_cli.choices import listed
from ottla_cli.connecting import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    run,
    sentence,
    usage,
)
from ottla_cli.failure import Failure
from ottla_cli.formats import unescape
from ottla_cli.input_records import NewRecord, line_reader, parse_headers, read_json
from ottla_cli.interrupts import INTERRUPTED
from ottla_cli.produce_run import ProduceRun, Tally, pieces_of
from ottla_cli.profiles import security
from ottla_cli.quantities import parse_size, plural, show_duration, show_size
from ottla_cli.screen import note, print_json
from ottla_client import Producer
from ottla_client.errors import RequestError


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


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to write to.")],
    format_: Annotated[
        InputFormat,
        typer.Option("--format", "-f", help="Standard input: lines, JSON lines, or one raw record."),
    ] = InputFormat.lines,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of all records.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            metavar="TEXT",
            help="Separates key and value in lines, such as ':' or '\\t'.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of all records; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", help="The partition; by default chosen by key, or spread.", min=0),
    ] = None,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="An empty value (or key) is null, a tombstone.")
    ] = False,
    delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", metavar="TEXT", help="The end of a record.")
    ] = "\\n",
    compression: Annotated[
        Compression,
        typer.Option("--compression", "-z", metavar="CODEC", help=f"Of batches: {listed(Compression)}."),
    ] = Compression.none,
    acks: Annotated[
        Acks,
        typer.Option("--acks", help="Acknowledged by all in-sync replicas, by the leader (1), or not (0)."),
    ] = Acks.all,
    linger_ms: Annotated[
        float, typer.Option("--linger-ms", help="How long a batch waits for more records.")
    ] = 5,
    max_record_bytes: Annotated[
        str, typer.Option("--max-record-bytes", metavar="SIZE", help="Refuse larger records.")
    ] = "1MiB",
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
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

    Values of --format:
    lines  every line is a value, or a key and a value with --key-separator
    json   one object per line with key, value, headers, partition, timestamp
           (ms), all optional; key_base64 and value_base64 are for bytes; the
           output of `ottla consume --json` has this form
    raw    the whole input is one record

    A summary goes to standard error; with --json to standard output. Ctrl-C
    stops reading; records that were read are still sent.
    """
    fixed = usage(parse_headers, header or [])
    separator = None if key_separator is None else usage(unescape, key_separator)
    given_key = None if key is None else usage(unescape, key)
    limit = usage(parse_size, max_record_bytes)
    ends = usage(unescape, delimiter)
    if not ends or separator == b"":
        raise Failure("--delimiter and --key-separator need at least one character.", exit_code=2)
    if format_ is InputFormat.json and (separator is not None or null):
        raise Failure("--format json has its own keys and nulls; leave out -K and -Z.", exit_code=2)
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
        security=security(),
        compression=str(compression),
        acks=str(acks),
        linger_ms=linger_ms,
        max_request_size=max(1024 * 1024, limit + 4096),
    )
    if sys.stdin.isatty() and not quiet:
        note("One record per line; Ctrl-D ends the input.", style="dim")
    pieces = pieces_of(None if format_ is InputFormat.raw else ends, limit)
    work = ProduceRun(bootstrap, producer, topic, partition, create, pieces, read)
    began = time.monotonic()
    interrupted = run(work.run())
    try:
        _report(work.tally, time.monotonic() - began, quiet=quiet, as_json=as_json)
    except Failure as failed:
        failed.exit_code = INTERRUPTED if interrupted else failed.exit_code
        raise
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _json_reader(key: bytes | None, headers: list[tuple[str, bytes | None]]) -> Callable[[bytes], NewRecord]:
    def read(line: bytes) -> NewRecord:
        record = read_json(line)
        if headers:
            record = record._replace(headers=[*headers, *record.headers])
        return record if record.key is not None or key is None else record._replace(key=key)

    return read


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
