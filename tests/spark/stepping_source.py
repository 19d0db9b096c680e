"""The data source `ottla` with a driver that stops at a step of its commit, so that a test can kill it there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pyspark_ottla.options import write_options
from pyspark_ottla.settle import Step
from pyspark_ottla.source import OttlaDataSource
from pyspark_ottla.writer import StreamWriter, columns_of


class SteppingWriter(StreamWriter):
    def reached(self, step: Step) -> None:
        if step.name == os.environ.get("STOP_AT"):
            Path(os.environ["STOPPED"]).touch()
            time.sleep(600)


class SteppingSource(OttlaDataSource):
    @classmethod
    def name(cls) -> str:
        return "ottla_stepping"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        options = write_options(self.options, streaming=True)
        return SteppingWriter(options, columns_of(schema, options, overwrite=False))
