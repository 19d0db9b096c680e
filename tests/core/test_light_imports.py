"""What a broker's process does not load, and that what it does load still works that way."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from ottla_core.light_imports import use_bare_packages, without_terminal_colours
use_bare_packages()
with without_terminal_colours():
    import structlog
from aetcd import rpc
from aetcd.rpc.rpc_pb2_grpc import KVStub
from aiokafka.record._crecords import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
assert crc32c(b"123456789") == 0xE3069283
builder = DefaultRecordBatchBuilder(
    magic=2, compression_type=1, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
    batch_size=1000,
)
builder.append(0, 1234, b"k", b"v", [])
(record,) = DefaultRecordBatch(bytes(builder.build()))
assert (record.key, record.value, record.timestamp) == (b"k", b"v", 1234)
assert rpc.RangeRequest(key=b"a").SerializeToString() == b"\\n\\x01a"
loaded = {"aiokafka.client", "aetcd.client", "rich.console", "crc32c._cli"} & set(sys.modules)
assert not loaded, loaded
import rich.console  # hidden only for a moment
"""


def test_the_parts_that_are_used_work_without_the_rest() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_packages_that_are_loaded_already_are_left_alone() -> None:
    script = (
        "import aiokafka, crc32c\nfrom ottla_core.light_imports import use_bare_packages\nuse_bare_packages()\n"
        "import sys\nassert sys.modules['aiokafka'] is aiokafka and aiokafka.AIOKafkaClient\n"
        "assert sys.modules['crc32c'] is crc32c and crc32c.CRC32CHash\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
