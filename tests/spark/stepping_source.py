"""The data source `ottla` for jobs that tests kill: it shows which tasks run, and stops where a test wants it to. [A]

Each task has a file in MARKERS, named after its process, while it runs. A file that is left after a kill proves that
the kill has hit a running task.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark_ottla.options import read_options, write_options
from pyspark_ottla.reader import StreamReader
from pyspark_ottla.settle import Step
from pyspark_ottla.source import OttlaDataSource
from pyspark_ottla.task_write import Written
from pyspark_ottla.writer import BatchWriter, StreamWriter, columns_of

#: Tasks take longer than they need, so that most of the time there is one to hit.
_SLOW_S = (0.1, 0.6)


@contextmanager
def marked() -> Iterator[None]:
    marker = Path(os.environ["MARKERS"]) / str(os.getpid())
    marker.touch()
    try:
        time.sleep(random.uniform(*_SLOW_S))
        yield
        time.sleep(random.uniform(*_SLOW_S))
    finally:
        marker.unlink(missing_ok=True)


class MarkedReader(StreamReader):
    def read(self, partition: Any) -> Iterator[Any]:
        if partition.value is None:
            return
        with marked():
            yield from super().read(partition)


class MarkedBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[Any]) -> Written:
        with marked():
            return super().write(iterator)


class SteppingWriter(StreamWriter):
    def write(self, iterator: Iterator[Any]) -> Written:
        with marked():
            return super().write(iterator)

    def reached(self, step: Step) -> None:
        if step.name == os.environ.get("STOP_AT"):
            Path(os.environ["STOPPED"]).touch()
            time.sleep(600)


class SteppingSource(OttlaDataSource):
    """Registered in a session, it replaces the format `ottla`."""

    def streamReader(self, schema: Any) -> StreamReader:
        return MarkedReader(read_options(self.options, streaming=True))

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        options = write_options(self.options)
        return MarkedBatchWriter(options, columns_of(schema, options, overwrite=overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        options = write_options(self.options, streaming=True)
        return SteppingWriter(options, columns_of(schema, options, overwrite=False))
