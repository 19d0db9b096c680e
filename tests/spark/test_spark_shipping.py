"""What travels to executors, and what is said where the package is missing; what its import costs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import cloudpickle

from ottla_core.ids import TopicPartition
from pyspark_ottla import DefaultSource
from pyspark_ottla.options import read_options, write_options
from pyspark_ottla.plan import OffsetRange
from pyspark_ottla.reader import BatchReader, StreamReader
from pyspark_ottla.writer import BatchWriter

OPTIONS = {"bootstrap.servers": "h:1", "subscribe": "t"}


def test_readers_and_writers_travel() -> None:
    reader = pickle.loads(cloudpickle.dumps(BatchReader(read_options(OPTIONS, streaming=False))))
    assert reader._options == read_options(OPTIONS, streaming=False)
    writer = pickle.loads(
        cloudpickle.dumps(BatchWriter(write_options({"bootstrap.servers": "h:1"}), {"value": 0}))
    )
    assert (writer._options.bootstrap, writer._columns) == ("h:1", {"value": 0})
    source = pickle.loads(cloudpickle.dumps(DefaultSource(OPTIONS)))
    assert source.options == OPTIONS
    wanted = OffsetRange(TopicPartition("t", 0), 1, 2)
    assert pickle.loads(cloudpickle.dumps(wanted)) == wanted


def test_what_is_connected_stays_on_the_driver() -> None:
    reader = StreamReader(read_options(OPTIONS, streaming=True))
    assert reader._lookup is reader._lookup
    travelled = pickle.loads(cloudpickle.dumps(reader))
    assert travelled._options == reader._options
    assert "_opened" not in travelled.__dict__


@pytest.mark.parametrize("kind", ["source", "reader"])
def test_a_worker_without_the_package_says_what_to_do(kind: str, tmp_path: Path) -> None:
    """A Python that has Spark and nothing of ours, as in an executor's image that was forgotten."""
    made: object = DefaultSource(OPTIONS)
    if kind == "reader":
        made = BatchReader(read_options(OPTIONS, streaming=False))
    packed = tmp_path / "packed"
    packed.write_bytes(cloudpickle.dumps(made))
    alone = tmp_path / "site"
    alone.mkdir()
    for name in ("pyspark", "py4j", "numpy", "numpy.libs"):
        (alone / name).symlink_to(Path(pyspark.__file__).parent.parent / name)
    program = f"import pickle, pyspark.cloudpickle; pickle.load(open({str(packed)!r}, 'rb'))"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(alone)},
    )
    assert ended.returncode == 1
    assert "cannot import pyspark_ottla: install ottla[spark] there" in ended.stderr.splitlines()[-1]


def test_the_package_is_light_to_import() -> None:
    """Every session imports it, whether it reads from Ottla or not."""
    program = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_ottla;"
        "heavy = {'grpc', 'ottla_client.cluster', 'pyarrow', 'numpy', 'aiokafka'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert made.stdout.strip() == "[]"
