"""Builds `driver.c`, the load, and other C programs on first use, in the cache folder: one binary per source. [A]

The load is linked with the librdkafka of confluent-kafka, so that the version named under the tables is the one that
ran; with the system's where the wheel has none. Only the header comes from librdkafka-dev, and what the driver uses
of it has not changed in years.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import confluent_kafka

from ottla_bench.kafka_jars import cache_folder

_SOURCE = Path(__file__).with_name("driver.c")
_BUILD_TIMEOUT_S = 120


class DriverUnavailable(RuntimeError):
    """The load cannot be built here; the message says what to do."""


@cache
def driver() -> str:
    """The path of the program."""
    library = _library()
    link = ["-lrdkafka"] if library is None else [str(library), f"-Wl,-rpath,{library.parent}"]
    return built(_SOURCE, [*link, "-lpthread"], "are libc6-dev and librdkafka-dev installed?")


def _library() -> Path | None:
    """The wheel's own; None if confluent-kafka was built against the system's."""
    beside = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    return next(iter(sorted(beside.glob("librdkafka*.so*"))), None)


def built(source: Path, link: Sequence[str], hint: str) -> str:
    """The path of the program of a source, which is compiled unless it is there already."""
    name = hashlib.sha256(source.read_bytes() + " ".join(link).encode()).hexdigest()[:16]
    program = cache_folder().with_name(f"load-{source.stem}-{name}")
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        _build(program, source, link, hint)
    return str(program)


def _build(program: Path, source: Path, link: Sequence[str], hint: str) -> None:
    """Build under another name and rename, so that no process runs an incomplete program."""
    with tempfile.TemporaryDirectory(dir=program.parent, prefix=".build-") as scratch:
        made = Path(scratch) / "program"
        command = ["cc", "-O2", "-Wall", "-o", str(made), str(source), *link]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            raise DriverUnavailable(
                "There is no C compiler; install the package gcc and try again."
            ) from None
        if done.returncode != 0:
            raise DriverUnavailable(f"The load could not be built; {hint}\n" + done.stderr.strip()[-1000:])
        os.replace(made, program)
