"""`ottla log dump`: show the content of log files, without a broker. [A]"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla_cli.failure import Failure
from ottla_cli.quantities import plural, show_size, show_time
from ottla_cli.screen import note, say, show, table

if TYPE_CHECKING:
    from ottla_cli.log_reading import Segment, SegmentReader
    from ottla_core.records.batch import BatchHeader
    from ottla_core.records.codec import Record

app = typer.Typer(no_args_is_help=True)

_SHOWN_BYTES = 80


@app.callback()
def _group() -> None:
    """Inspect log files, without a broker.

    $ ottla log dump ./data/broker-0/orders-0
    """


@app.command()
def dump(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Segments (.log), a partition's folder, or a folder of those."),
    ],
    batches: Annotated[bool, typer.Option("--batches", "-B", help="Also show every batch.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also show every record.")] = False,
    from_offset: Annotated[
        int, typer.Option("--from", metavar="OFFSET", help="Skip batches before this offset.")
    ] = 0,
    max_batches: Annotated[
        int | None, typer.Option("--max", metavar="N", help="Show at most N batches.", min=1)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines: type is segment, batch or record.")
    ] = False,
) -> None:
    """Show segments, batches and records of log files, and check CRCs and indexes.

    $ ottla log dump ./data                         # every partition below
    $ ottla log dump ./data/broker-0/orders-0 --batches
    $ ottla log dump 00000000000000000000.log --deep --max 1
    $ ottla log dump ./data --json | jq 'select(.problems != [])'

    The files are not changed. If a broker runs on them, the index files of the
    newest segment may be short or missing: the broker keeps that index in
    memory until the segment is full. The exit code is 1 if a file is damaged.
    """
    try:
        from ottla_cli.log_reading import SegmentReader, partition_folders, segments_of
        from ottla_core.real.disk import RealDisk
    except ImportError as missing:
        raise Failure(
            f"Reading log files needs the broker package ({missing.name} is missing): "
            "pip install 'ottla[broker]'."
        ) from None
    disk = RealDisk(open_files_max=16)
    look = _Look(batches or deep, deep, from_offset, max_batches, as_json)
    for path in paths:
        if not os.path.exists(path):
            raise Failure(f"{path} does not exist.")
        if os.path.isfile(path):
            if not path.endswith(".log"):
                raise Failure(f"{path} is not a segment; give a .log file (its indexes are checked, too).")
            partition = os.path.basename(os.path.dirname(os.path.abspath(path)))
            look.dump(partition, [SegmentReader(disk, os.path.abspath(path))])
            continue
        folders = partition_folders(path)
        if not folders:
            raise Failure(f"There are no log files in {path}, nor in folders up to two levels below it.")
        for folder in folders:
            # Below a folder of several brokers, each broker may have the same partition.
            name = (
                os.path.basename(os.path.abspath(folder)) if folder == path else os.path.relpath(folder, path)
            )
            look.dump(name, (SegmentReader(disk, segment) for segment in segments_of(folder)))
    look.finish()
    if look.problems:
        raise Failure(f"{plural(look.problems, 'problem')} found in the log files; see above.")


class _Look:
    """One run of the command: its options and its findings."""

    def __init__(
        self, batches: bool, deep: bool, from_offset: int, max_batches: int | None, as_json: bool
    ) -> None:
        self._batches = batches
        self._deep = deep
        self._from = from_offset
        self._left = sys.maxsize if max_batches is None else max_batches
        self._as_json = as_json
        self._seen: list[tuple[str, Segment]] = []
        self.problems = 0

    def dump(self, partition: str, readers: Iterable[SegmentReader]) -> None:
        for reader in readers:
            if self._batches and not self._as_json:
                typer.echo(f"{reader.segment.path}:")
            for position, header in reader.batches():
                if self._batches and self._left > 0 and header.last_offset >= self._from:
                    self._left -= 1
                    self._show_batch(reader, position, header)
            segment = reader.segment
            self.problems += len(segment.problems)
            if self._as_json:
                _line(_segment_json(segment))
            else:
                self._seen.append((partition, segment))

    def finish(self) -> None:
        """Print one table of all segments, and their problems."""
        if not self._as_json:
            _print_segments(self._seen)

    def _show_batch(self, reader: SegmentReader, position: int, header: BatchHeader) -> None:
        records = reader.records(position, header) if self._deep else []
        if self._as_json:
            _line(_batch_json(reader.segment.path, position, header))
            for record in records:
                _line(_record_json(record, header))
            return
        say(_batch_text(position, header))
        for record in records:
            typer.echo(_record_text(record, header))


def _line(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


# --- for scripts ---


def _segment_json(segment: Segment) -> dict[str, Any]:
    return {
        "type": "segment",
        "path": segment.path,
        "base_offset": segment.base_offset,
        "next_offset": segment.next_offset,
        "size_bytes": segment.size_bytes,
        "batches": segment.batches,
        "records": segment.records,
        "first_timestamp": segment.first_timestamp_ms,
        "max_timestamp": segment.max_timestamp_ms,
        "compressions": segment.compressions,
        "index_entries": segment.index_entries,
        "time_index_entries": segment.time_index_entries,
        "problems": segment.problems,
    }


def _batch_json(path: str, position: int, header: BatchHeader) -> dict[str, Any]:
    return {
        "type": "batch",
        "path": path,
        "position": position,
        "size_bytes": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.count,
        "leader_epoch": header.leader_epoch,
        "compression": _compression(header),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "append" if header.is_log_append_time else "create",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
    }


def _record_json(record: Record, header: BatchHeader) -> dict[str, Any]:
    from ottla_cli.formats import json_fields

    return {
        "type": "record",
        "offset": record.offset,
        "timestamp": header.max_timestamp if header.is_log_append_time else record.timestamp_ms,
        **json_fields("key", record.key),
        **json_fields("value", record.value),
        "headers": [{"key": name, **json_fields("value", value)} for name, value in record.headers],
    }


# --- for people ---


def _print_segments(seen: list[tuple[str, Segment]]) -> None:
    rows = [
        (
            name,
            segment.base_offset,
            segment.next_offset - 1 if segment.batches else None,
            show_size(segment.size_bytes),
            f"{segment.batches:,}",
            f"{segment.records:,}",
            show_time(segment.max_timestamp_ms),
            ",".join(sorted(segment.compressions)) or "-",
            "ok" if not segment.problems else plural(len(segment.problems), "problem"),
        )
        for name, segment in seen
    ]
    columns = (
        "partition",
        "from#",
        "to#",
        "size#",
        "batches#",
        "records#",
        "newest record",
        "codecs",
        "state",
    )
    show(table(columns, rows))
    for _, segment in seen:
        for problem in segment.problems:
            note(f"{segment.path}: {problem}.", style="red")


def _batch_text(position: int, header: BatchHeader) -> str:
    words = [
        f"batch at byte {position}:",
        f"offsets {header.base_offset} to {header.last_offset},",
        f"{plural(header.count, 'record')},",
        f"{header.size} bytes,",
        f"{_compression(header)},",
        show_time(header.max_timestamp),
        f"epoch {header.leader_epoch}",
        *_producer(header),
    ]
    return " ".join(words)


def _producer(header: BatchHeader) -> Iterator[str]:
    if header.has_producer:
        yield f"producer {header.producer_id}/{header.producer_epoch}"
        if header.base_sequence >= 0:
            yield f"sequence {header.base_sequence} to {header.last_sequence}"
    if header.is_transactional:
        yield "transactional"
    if header.is_control:
        yield "control"


def _record_text(record: Record, header: BatchHeader) -> str:
    moment = header.max_timestamp if header.is_log_append_time else record.timestamp_ms
    parts = [f"  {record.offset}", show_time(moment)]
    if header.is_control:
        return "  ".join([*parts, _marker(record)])
    parts.append(f"key={_shown(record.key)}" if record.key is not None else "no key")
    parts.append(_shown(record.value))
    parts += [f"{name}={_shown(value)}" for name, value in record.headers]
    return "  ".join(parts)


def _marker(record: Record) -> str:
    from ottla_core.errors import RequestError
    from ottla_core.records.control import marker_of

    try:
        marker = marker_of(record)
    except RequestError as bad:
        return f"an invalid marker: {bad.message}"
    if marker is None:
        return "a control record of an unknown type"
    return f"{marker.type.name.lower()} marker, coordinator epoch {marker.coordinator_epoch}"


def _shown(data: bytes | None) -> str:
    """A bytes literal without its quotes, cut if it is long."""
    if data is None:
        return "null"
    text = repr(data[:_SHOWN_BYTES])[2:-1]
    return text if len(data) <= _SHOWN_BYTES else f"{text}… ({len(data)} bytes)"


def _compression(header: BatchHeader) -> str:
    from ottla_core.records.compression import Compression

    codec = header.compression
    return Compression(codec).name.lower() if codec <= Compression.ZSTD else f"unknown {codec}"
