"""Many clients with few records each: a thousand connections, one record every 100 ms on each. [A]

Devices and small services write like this. librdkafka would need three threads per client, so `crowd.c` sends the
same prepared requests to both brokers, as a client with `linger.ms=0` does.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from ottla_bench.driver import DriverUnavailable, built
from ottla_bench.flood_requests import produce
from ottla_bench.load_client import LoadFailed
from ottla_core.records.codec import Record, build_batch

_SOURCE = Path(__file__).with_name("crowd.c")
_TIMEOUT_S = 120.0
_RECORD_BYTES = 200


def run(
    bootstrap: str, topic: str, partitions: int, clients: int, period_ms: int, seconds: float
) -> dict[str, float]:
    """Write for so long; latency of the requests, and the CPU time of this client."""
    host, _, port = bootstrap.rpartition(":")
    records = bytes(build_batch([Record(0, 0, None, bytes(_RECORD_BYTES), [])]))
    try:
        program = built(_SOURCE, (), "is libc6-dev installed?")
    except DriverUnavailable as error:
        raise LoadFailed(str(error)) from None
    with tempfile.NamedTemporaryFile(prefix="ottla-crowd-") as file:
        file.write(b"".join(produce(topic, number, records) for number in range(partitions)))
        file.flush()
        command = [program, host, port, *map(str, (clients, period_ms, seconds)), file.name]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S + seconds, check=False
        )
    if done.returncode != 0:
        raise LoadFailed(f"The crowd of clients failed: {done.stderr.strip()[-1000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result
