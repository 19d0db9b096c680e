"""`ottla consume`: write the records of topics to standard output. [A]

Follows by default, as kcat and rpk do: at the end it waits for more records, until Ctrl-C or until it has read
`--max` records. `--no-follow` stops at the offsets that were the end when it started. Records of one partition
keep their order; there is no order between partitions.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from ottla_cli.chosen_topics import Chosen, chosen_topics
from ottla_cli.completing import complete_group, complete_topic
from ottla_cli.connecting import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin,
    check_partitions,
    run,
    usage,
)
from ottla_cli.decoding import Decoding
from ottla_cli.failure import Failure
from ottla_cli.formats import Formatter, formatter, unescape
from ottla_cli.groups_consume import GroupReading
from ottla_cli.position import Position, parse_position
from ottla_cli.profiles import security
from ottla_cli.record_filter import record_filter
from ottla_cli.record_output import RecordOutput
from ottla_cli.screen import note
from ottla_client import Admin, Consumer, OffsetAndTimestamp, TopicPartition
from ottla_client.decode_spec import decode_specs

#: How long a poll waits for records before the end is checked again.
_POLL_MS = 500
#: The exit code of programs that SIGPIPE ends, such as kcat.
_BROKEN_PIPE = 141

_Offsets = dict[TopicPartition, OffsetAndTimestamp]


@dataclass(frozen=True, slots=True)
class Plan:
    """Start and end offset per partition; an end of None means no end."""

    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int] | None


def consume(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="One or more topics.", autocompletion=complete_topic),
    ],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="POSITION",
            help="Where to start: earliest, latest, an offset, -N, a time or an age.",
        ),
    ] = "earliest",
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this consumer group, and commit offsets.",
            autocompletion=complete_group,
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="POSITION", help="Stop before this position; implies --no-follow."),
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", "-n", metavar="N", help="Stop after N records.", min=1)
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition; may be repeated.", min=0),
    ] = None,
    regex: Annotated[
        bool,
        typer.Option("--regex", "-r", help="TOPIC is a regular expression that a whole name matches."),
    ] = False,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="REGEX", help="Only records whose value matches somewhere."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Only records whose JSON value fits, such as '$.user.id == 5'; may be repeated.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only records with this key.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="NAME[=VALUE]", help="Only records with this header; may be repeated."
        ),
    ] = None,
    decode: Annotated[
        list[str] | None,
        typer.Option(
            "--decode",
            "-D",
            metavar="FORMAT:FILE",
            help="Decode values by this schema (avro, protobuf, json); key=FORMAT:FILE decodes keys.",
        ),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out records that --decode cannot decode; name the first ten."),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", " /-e", help="At the end, wait for more records or stop.")
    ] = True,
    format_: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="value, key-value, json, hex, or a template such as '%p:%o %k=%v\\n'."
        ),
    ] = "value",
    key_separator: Annotated[
        str,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Between key and value; implies --format key-value."
        ),
    ] = "",
    null: Annotated[bool, typer.Option("--null", "-Z", help="Write NULL for null keys and values.")] = False,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Skip records of open or aborted transactions.")
    ] = False,
    rack: Annotated[
        str,
        typer.Option(
            "--rack",
            metavar="RACK",
            help="Read from replicas in this rack (client.rack), where there are some.",
        ),
    ] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes on standard error.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Read records and write them to standard output.

    $ ottla consume greetings                         # all records, then new ones
    $ ottla consume greetings --from earliest --max 10
    $ ottla consume greetings --from latest           # only new records
    $ ottla consume greetings --from -10 --no-follow  # ten of each partition
    $ ottla consume greetings --from -1h --no-follow  # the last hour
    $ ottla consume orders --from 2026-03-31T14:00Z --to 2026-03-31T15:00Z
    $ ottla consume orders --partition 2 --from 1000 --json | jq .value
    $ ottla consume orders refunds --grep 'user=7\\b' --no-follow
    $ ottla consume orders --where '$.user.id == 5'
    $ ottla consume 'orders-.*' --regex --header source=import
    $ ottla consume orders -f '%p:%o %d %k=%v\\n'
    $ ottla consume orders --group billing            # share the partitions
    $ ottla consume orders --decode avro:order.avsc --json | jq .value
    $ ottla consume orders -D protobuf:order.proto#Order -D key=json

    A POSITION is earliest, latest, an offset, -N (the last N of each
    partition), a time (2026-03-31T14:00Z, or ms since 1970) or an age (7d, -1h).

    By default it follows: at the end it waits for more records, also with
    --max, until Ctrl-C. With --no-follow (-e) it stops at the offsets
    that were the end when it started.

    With --group it shares the partitions with the other members, commits the
    offsets of the records that it has written, and continues there when it is
    run again; --from (earliest or latest) then applies to partitions without a
    committed offset. The group's protocol is the broker-side one, or the
    classic one where the brokers do not offer that.

    Tokens of a template: %t topic, %p partition, %o offset, %k key, %v or %s
    value, %K and %V their sizes, %T timestamp in ms, %d timestamp as ISO,
    %h headers, %%; and \\n \\t \\r \\0 \\xFF.

    --decode shows values as JSON text. FORMAT is json (FILE: a JSON Schema, or
    none), avro (FILE: .avsc) or protobuf (FILE: .proto or a descriptor set;
    FILE#MESSAGE if it has several). For bytes that begin with the schema id
    of a registry it is json-confluent, avro-confluent, protobuf-confluent. A
    record that does not fit ends the command; --skip-bad leaves it out.
    --grep and --where then look at what is shown.

    A CONDITION is a path into the JSON value, an operator and a value:
    '$.items[0].price >= 3', '$.tags[*] == new' (any element), '$.state =~ ^op'
    (a regular expression), or only a path, which must lead to something.
    Operators are == != < <= > >= =~; a value that is not JSON is text.

    --json is JSON lines with topic, partition, offset, timestamp (ms),
    timestamp_type, key, value, headers; bytes that are not UTF-8 appear as
    key_base64 and value_base64.
    """
    now_ms = int(time.time() * 1000)
    begin = usage(parse_position, start, now_ms)
    until = None if end is None else usage(parse_position, end, now_ms)
    if until is None and not follow:
        until = Position("latest")
    if key_separator and format_ == "value":
        format_ = "key-value"
    separator = usage(unescape, key_separator) or b"\t"
    write = usage(
        formatter,
        "json" if as_json else format_,
        key_separator=separator,
        null=b"NULL" if null else b"",
    )
    if group is not None:
        _check_group_options(begin, end, partition)
    output = _output(write, decode or [], skip_bad, format_, grep, where or [], key, header or [])
    isolation_level = "read_committed" if read_committed else "read_uncommitted"
    consumer = usage(
        Consumer,
        bootstrap,
        security=security(),
        auto_offset_reset=begin.kind if group is not None else "earliest",
        isolation_level=isolation_level,
        max_poll_records=5000,
        max_partition_fetch_bytes=4 * 1024 * 1024,
        client_rack=rack,
        group_id=group,
        enable_auto_commit=False,
        client_id="ottla-cli",
    )
    work: _Work | GroupReading
    if group is None:
        work = _Work(consumer, output, max_records, isolation_level)
        reading = work.run(bootstrap, Chosen(topics, regex), partition, begin, until)
    else:
        work = GroupReading(consumer, output, max_records, quiet=quiet)
        reading = work.run(bootstrap, Chosen(topics, regex), follow=follow)
    try:
        run(reading)
    except BrokenPipeError:
        # `ottla consume … | head`: the reader has closed the pipe. Discard the buffered output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from None
    except typer.Exit:
        # Ctrl-C is the normal end of following.
        if not quiet and sys.stderr.isatty():
            note(f"\n{work.count:,} records.", style="dim")
    finally:
        output.close()


def _output(
    write: Formatter,
    decode: list[str],
    skip_bad: bool,
    format_: str,
    grep: str | None,
    where: list[str],
    key: str | None,
    header: list[str],
) -> RecordOutput:
    specs = usage(decode_specs, decode)
    if not specs:
        if skip_bad:
            raise Failure("--skip-bad is for --decode: without it all records are shown.", exit_code=2)
        return RecordOutput(write, after=usage(record_filter, grep, key, header, where))
    if format_ == "hex":
        raise Failure("--format hex shows bytes; it excludes --decode.", exit_code=2)
    late_key = key if any(spec.part == "key" for spec in specs) else None
    before = usage(record_filter, None, None if late_key is not None else key, header)
    after = usage(record_filter, grep, late_key, [], where)
    return RecordOutput(write, before=before, decoding=Decoding(specs), after=after, skip_bad=skip_bad)


def _check_group_options(begin: Position, end: str | None, partition: list[int] | None) -> None:
    if begin.kind not in ("earliest", "latest"):
        raise Failure(
            "With --group, --from is earliest or latest, for partitions without a committed offset; "
            "`ottla groups reset-offsets` moves a group.",
            exit_code=2,
        )
    if partition or end is not None:
        raise Failure("--group excludes --partition and --to: the group assigns partitions.", exit_code=2)


class _Work:
    def __init__(
        self,
        consumer: Consumer,
        output: RecordOutput,
        max_records: int | None,
        isolation_level: str,
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._max = max_records
        self._isolation_level = isolation_level
        self.count = 0

    async def run(
        self,
        bootstrap: str,
        topics: Chosen,
        partitions: list[int] | None,
        begin: Position,
        until: Position | None,
    ) -> None:
        async with admin(bootstrap) as client:
            wanted = [
                TopicPartition(found.name, number)
                for found in await chosen_topics(client, topics)
                for number in check_partitions(found, partitions)
            ]
            plan = await plan_of(client, wanted, begin, until, self._isolation_level)
        async with self._consumer:
            await self._read(plan)

    async def _read(self, plan: Plan) -> None:
        consumer, ends = self._consumer, plan.ends
        left = [tp for tp in plan.starts if ends is None or plan.starts[tp] < ends[tp]]
        consumer.assign(left)
        for tp in left:
            consumer.seek(tp, plan.starts[tp])
        while left:
            left_over = None if self._max is None else self._max - self.count
            # A filter may drop most records, so poll many of them then.
            limit = 5000 if left_over is None or self._output.drops else min(5000, left_over)
            records = await consumer.poll(timeout_ms=_POLL_MS, max_records=limit)
            if ends is not None:
                records = [r for r in records if r.offset < ends[TopicPartition(r.topic, r.partition)]]
            self.count += self._output.write(records, left_over)
            if self._max is not None and self.count >= self._max:
                return
            if ends is not None:
                done = [tp for tp in left if await consumer.position(tp) >= ends[tp]]
                if done:
                    # Pause, not unassign: a new assignment would drop what was fetched from other partitions.
                    consumer.pause(*done)
                    left = [tp for tp in left if tp not in done]


async def plan_of(
    client: Admin,
    wanted: list[TopicPartition],
    begin: Position,
    until: Position | None,
    isolation_level: str = "read_uncommitted",
) -> Plan:
    """Positions as offsets, clamped to the range of each partition; with read_committed it ends at the last stable
    offset, because a reader does not get further while a transaction is open."""
    earliest = await client.list_offsets(dict.fromkeys(wanted, "earliest"))
    latest = await client.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level=isolation_level)

    async def resolve(position: Position, *, checked: bool) -> dict[TopicPartition, int]:
        if position.kind == "earliest":
            return {tp: earliest[tp].offset for tp in wanted}
        if position.kind == "latest":
            return {tp: latest[tp].offset for tp in wanted}
        if position.kind == "tail":
            return {tp: max(earliest[tp].offset, latest[tp].offset - position.value) for tp in wanted}
        if position.kind == "time":
            found = await client.list_offsets(dict.fromkeys(wanted, position.value))
            return {tp: found[tp].offset if found[tp].offset >= 0 else latest[tp].offset for tp in wanted}
        if checked:
            _check_range(position.value, wanted, earliest, latest)
        return {tp: max(earliest[tp].offset, min(position.value, latest[tp].offset)) for tp in wanted}

    starts = await resolve(begin, checked=True)
    return Plan(starts, None if until is None else await resolve(until, checked=False))


def _check_range(offset: int, wanted: list[TopicPartition], earliest: _Offsets, latest: _Offsets) -> None:
    """Fail if no partition has the offset. That some lack it is normal when all are read."""
    if any(earliest[tp].offset <= offset <= latest[tp].offset for tp in wanted):
        return
    low, high = min(earliest[tp].offset for tp in wanted), max(latest[tp].offset for tp in wanted)
    raise Failure(
        f"Offset {offset} is out of range: {', '.join(dict.fromkeys(tp.topic for tp in wanted))} has {low} to {high}"
        f"{'' if len(wanted) == 1 else ' over all partitions'}. Use --from earliest or latest."
    )
