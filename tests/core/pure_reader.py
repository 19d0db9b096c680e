"""What the records of some bytes are, and what a process with the Python sources says: `test_compiled_twin.py`.

As a program, it runs in that process: reads bytes, writes outcomes.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable, Generator
from typing import Any

from ottla_core import compiled
from ottla_core.errors import RequestError
from ottla_core.records import batch, codec, structure, walk

_SIZE = struct.Struct(">I")
_LIMIT_BYTES = 1 << 20


def outcomes(data: bytes, count: int) -> list[Any]:
    """Of every function that is compiled, on these bytes; plain values, which compare across processes."""
    return [
        _outcome(each)
        for each in (
            lambda: tuple(batch.header_at(data)),
            lambda: [(at, tuple(header)) for at, header in batch.whole_batches(data)],
            lambda: [(at, tuple(header)) for at, header in batch.complete_batches(data)],
            lambda: batch.verify(data, 0, batch.header_at(data)),
            lambda: batch.stamp_prefix(count, len(data), count),
            lambda: [tuple(record) for record in _records(data)],
            lambda: _rows(data),
            lambda: bytes(codec.rebuild_batch(batch.header_at(data), _records(data)[::2])),
            lambda: bytes(codec.empty_batch(batch.header_at(data))),
            lambda: codec.delete_horizon_ms(batch.header_at(data)),
            lambda: _checked(data[batch.HEADER_BYTES :], count),
            lambda: _checked(
                data[batch.HEADER_BYTES :], count, needs_keys=True, least_delta=3, most_delta=999
            ),
            lambda: _starts(data),
        )
    ]


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except RequestError as refused:
        return type(refused).__name__, str(refused)
    except Exception as error:
        return type(error).__name__  # Python words its own errors differently


def _records(data: bytes) -> list[codec.Record]:
    return codec.records_of(data, 0, batch.header_at(data), limit_bytes=_LIMIT_BYTES)


def _rows(data: bytes) -> list[Any]:
    header = batch.header_at(data)
    return codec.rows_of(data, 0, header, tuple, topic="t", partition=1, limit_bytes=_LIMIT_BYTES)


def _checked(data: bytes, count: int, **wanted: Any) -> tuple[int, Any]:
    """How often it yielded, and what it found."""
    steps: Generator[None, None, Any] = structure.check_records(data, count, **wanted)
    turns = 0
    while True:
        try:
            next(steps)
            turns += 1
        except StopIteration as done:
            return turns, tuple(done.value)


def _starts(data: bytes) -> tuple[bool, list[int]]:
    starts: list[int] = []
    return walk.record_starts(data, min(batch.HEADER_BYTES, len(data)), len(data), starts), starts


def ask(stdin: Any, stdout: Any, data: bytes, count: int) -> list[Any]:
    """The outcomes in the other process."""
    stdin.write(_SIZE.pack(len(data)) + _SIZE.pack(count) + data)
    stdin.flush()
    (size,) = _SIZE.unpack(stdout.read(_SIZE.size))
    found: list[Any] = pickle.loads(stdout.read(size))
    return found


def main() -> None:
    assert not compiled.is_in_use()
    while head := sys.stdin.buffer.read(2 * _SIZE.size):
        size, count = struct.unpack(">II", head)
        answer = pickle.dumps(outcomes(sys.stdin.buffer.read(size), count))
        sys.stdout.buffer.write(_SIZE.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
