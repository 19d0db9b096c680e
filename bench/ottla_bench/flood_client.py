"""Floods in a process of its own: busy connections that always have requests under way. [A]

Started by `Floods`. One connection per flood and broker; each sends its requests round and round and keeps a fixed
number of them unanswered. It ends with its time, or with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import cast

from ottla_bench.flood_requests import WINDOWS, requests

_RETRY_S = 0.2
_START_TIMEOUT_S = 60.0
#: Frames that are joined into one write.
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class FloodJob:
    bootstrap: str
    #: Every broker is asked for the partitions of this topic that it leads.
    topic: str
    floods: Sequence[str]
    #: Then it ends by itself.
    seconds: float
    connections: int = 1


class Floods:
    """The process, as its parent sees it: `with Floods(job) as floods: …`, then `floods.answers`."""

    def __init__(self, job: FloodJob) -> None:
        command = [sys.executable, "-P", "-m", "ottla_bench.flood_client", json.dumps(asdict(job))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        #: Answers by flood, and `cut`: how often a connection was lost.
        self.answers: dict[str, int] = {}

    def __enter__(self) -> Floods:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "flooding":
            self._process.kill()
            _, errors = self._process.communicate()
            raise RuntimeError(f"The flood client did not start: {errors.strip()[-2000:]}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            out, errors = self._process.communicate(timeout=_START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, errors = self._process.communicate()
        if kind is None:
            if not out:
                raise RuntimeError(f"The flood client failed: {errors.strip()[-2000:]}")
            self.answers = json.loads(out)


# ---------------------------------------------------------------------- in the client's process


class _Connection(asyncio.Protocol):
    """Counts answers by their lengths, and sends as many new requests."""

    def __init__(self, kind: str, frames: Sequence[bytes], counts: Counter[str]) -> None:
        self._kind, self._counts = kind, counts
        self._window = WINDOWS[kind]
        # A produce flood goes round in pieces of several requests, for the sake of the client's own CPU.
        self._step = min(_AT_ONCE, self._window // 2) if len(frames) > 1 else 1
        padded = list(frames) * (1 + self._step // len(frames))
        self._chunks = [
            b"".join(padded[at : at + self._step])
            for at in range(0, len(padded) - self._step + 1, self._step)
        ]
        self._at = 0
        self._unanswered = 0
        self._skip = 0
        self._head = b""
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is not a subclass of it
        self._fill()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._fill()

    def data_received(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size:
            if self._skip:
                step = min(self._skip, size - at)
                self._skip -= step
                at += step
            else:
                step = min(4 - len(self._head), size - at)
                self._head += data[at : at + step]
                at += step
                if len(self._head) < 4:
                    return
                self._skip, self._head = int.from_bytes(self._head, "big"), b""
            if not self._skip and not self._head:
                self._unanswered -= 1
                self._counts[self._kind] += 1
        self._fill()

    def _fill(self) -> None:
        while self._transport is not None and not self._paused and self._unanswered < self._window:
            self._transport.write(self._chunks[self._at])
            self._at = (self._at + 1) % len(self._chunks)
            self._unanswered += self._step


async def _hold(address: str, kind: str, frames: Sequence[bytes], counts: Counter[str]) -> None:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    while True:
        with suppress(OSError):
            transport, protocol = await loop.create_connection(
                lambda: _Connection(kind, frames, counts), host, int(port)
            )
            try:
                await protocol.over
            finally:
                transport.abort()
        counts["cut"] += 1
        await asyncio.sleep(_RETRY_S)


def _led(job: FloodJob) -> dict[str, list[int]]:
    """Partitions by the address of their leader."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": job.bootstrap, "log_level": 0})
    seen = admin.list_topics(timeout=30)
    addresses = {broker.id: f"{broker.host}:{broker.port}" for broker in seen.brokers.values()}
    led: dict[str, list[int]] = {address: [] for address in addresses.values()}
    for number, partition in seen.topics[job.topic].partitions.items():
        if partition.leader in addresses:
            led[addresses[partition.leader]].append(number)
    return led


async def _flood(job: FloodJob, led: dict[str, list[int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    tasks = [
        asyncio.create_task(_hold(address, kind, requests(kind, job.topic, partitions), counts))
        for address, partitions in led.items()
        if partitions
        for kind in job.floods
        for _ in range(job.connections)
    ]
    print("flooding", flush=True)
    parent = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait([parent, *tasks], timeout=job.seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task in done:
            task.result()  # Raises: a flood ends only by a bug.
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return counts


def main() -> None:
    import os

    import uvloop

    job = FloodJob(**json.loads(sys.argv[1]))
    counts = uvloop.run(_run(job))
    print(json.dumps(counts), flush=True)
    os._exit(0)  # The thread on standard input need not end first.


async def _run(job: FloodJob) -> Counter[str]:
    return await _flood(job, _led(job))


if __name__ == "__main__":
    main()
