"""Loads producer state from `.snapshot` files and the batches after them. [S]

A snapshot named after an offset is the state before the batch at that offset. One is written at every roll, for the
new segment, and at a clean stop for the log's end. A damaged one is ignored: an older one and more batches say the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ottla_broker.log.aborted import AbortedTransaction
from ottla_broker.log.files import SNAPSHOT, file_name, parse_name
from ottla_broker.log.markers import marker_in
from ottla_broker.log.producers import CorruptSnapshot, ProducerStates
from ottla_broker.log.scan import BadBatch, walk
from ottla_broker.log.segment import Segment
from ottla_core.ports.disk import Disk
from ottla_core.records.batch import BatchHeader


def snapshot_path(folder: str, offset: int) -> str:
    return f"{folder}/{file_name(offset, SNAPSHOT)}"


def write_snapshot(disk: Disk, folder: str, producers: ProducerStates, offset: int) -> str:
    """Write the state before `offset`, without fsync; return the path."""
    path = snapshot_path(folder, offset)
    disk.write_file(path, producers.encode(offset), sync=False)
    return path


def load_snapshot(disk: Disk, folder: str, names: list[str], at_most: int) -> ProducerStates | None:
    """The newest good snapshot that is not later than `at_most`; damaged ones are removed."""
    offsets = [p.base_offset for n in names if (p := parse_name(n)) and p.kind == SNAPSHOT and not p.suffix]
    for offset in sorted((o for o in offsets if o <= at_most), reverse=True):
        path = snapshot_path(folder, offset)
        try:
            return ProducerStates.decode(disk.read_file(path), offset)
        except FileNotFoundError:
            continue
        except CorruptSnapshot:
            disk.remove(path)
    return None


def drop_snapshots(disk: Disk, folder: str, names: list[str], keep: Callable[[int], bool]) -> None:
    for name in names:
        parts = parse_name(name)
        if parts and parts.kind == SNAPSHOT and not parts.suffix and not keep(parts.base_offset):
            disk.remove(f"{folder}/{name}")


def drop_strays(disk: Disk, folder: str, names: list[str], bases: Collection[int]) -> None:
    """Delete producer snapshots without a segment, except for the newest. A clean stop leaves one at the end of the
    log: the next start needs it, and it is deleted with no segment."""
    found = [p.base_offset for n in names if (p := parse_name(n)) and p.kind == SNAPSHOT and not p.suffix]
    for offset in sorted(set(found).difference(bases))[:-1]:
        disk.remove(snapshot_path(folder, offset))


def replay_batch(
    producers: ProducerStates, segment: Segment, position: int, header: BatchHeader, now_ms: int
) -> AbortedTransaction | None:
    """Update the state with one batch of the log; return the transaction that it aborted."""
    if header.producer_id < 0:
        producers.end_offset = header.next_offset
        return None
    marker = None
    if header.is_control:
        marker = marker_in(segment.file.read(position, header.size), header)
    done = producers.update(header, now_ms, marker)
    if done is None or not done.aborted:
        return None
    return AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, done.last_stable_offset)


def replay(producers: ProducerStates, segments: list[Segment], from_offset: int, now_ms: int) -> None:
    """Apply all batches in `segments` from an offset on to the producer state."""
    for segment in segments:
        found = segment.locate(from_offset)
        if found is None:
            continue
        try:
            for position, header in walk(segment.file, found[0], segment.size):
                replay_batch(producers, segment, position, header, now_ms)
        except BadBatch as error:
            raise segment.damaged(str(error)) from error
