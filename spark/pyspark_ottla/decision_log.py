"""The compacted topic that keeps the last decision of each sink, and who may write it. [S]

Key: the sink's name. A driver writes in transactions of a transactional id that is the sink's name, too, so a driver
that starts fences the earlier ones (`fence`); what it reads afterwards is the last decision that there is, and nobody
else adds one before it is fenced itself. Reading waits for open transactions of other sinks in the same partition,
which their timeout bounds.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from ottla_client import Admin, NewTopic, Producer
from ottla_client.cluster import Cluster
from ottla_client.errors import TopicAlreadyExists, UnknownTopicOrPartition
from ottla_client.leaders import list_offsets
from ottla_client.security import Security
from ottla_core.ids import TopicPartition
from ottla_core.real.clock import RealClock
from ottla_core.records.codec import records_of
from pyspark_ottla.decisions import Decision, DecisionProblem, decode, encode, is_batch_sink
from pyspark_ottla.fetch import PartitionFetch
from pyspark_ottla.plan import OffsetRange

TOPIC = "__spark_sink_state"
#: Fixed: it decides where the decisions of a query are. The first one is for batch writes.
_PARTITIONS = 16
#: A decision takes milliseconds. This bounds how long the query waits for a driver of another one that died in it.
_TRANSACTION_TIMEOUT_MS = 10_000
#: Decisions name their transactions, about 40 bytes each before compression.
_RECORD_BYTES_MAX = 1024 * 1024
_DECODED_BYTES_MAX = 64 * 1024 * 1024
#: Small segments, so that compaction leaves few records to read.
_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1024 * 1024),
    "unclean.leader.election.enable": "false",
}
_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Stored:
    decision: Decision
    timestamp_ms: int


def partition_of(sink: str) -> int:
    if is_batch_sink(sink):
        return 0
    return 1 + zlib.crc32(sink.encode()) % (_PARTITIONS - 1)


async def read_decision(cluster: Cluster, sink: str, timeout_s: float) -> Decision | None:
    """The last decision of the sink; None before the first."""
    stored = (await read_decisions(cluster, sink, timeout_s)).get(sink)
    return None if stored is None else stored.decision


async def read_decisions(cluster: Cluster, sink: str, timeout_s: float) -> dict[str, Stored]:
    """The last decisions of the sink's partition."""
    tp = TopicPartition(TOPIC, partition_of(sink))
    clock = RealClock()
    try:
        layout = await cluster.layout(TOPIC, auto_create=False, timeout_s=timeout_s)
    except UnknownTopicOrPartition:
        return {}
    if len(layout.partitions) < _PARTITIONS:
        raise DecisionProblem(f"Topic {TOPIC} needs {_PARTITIONS} partitions; delete it if no query uses it.")
    start = (await list_offsets(cluster, clock, {tp: -2}, timeout_s=timeout_s))[tp].offset
    end = (await list_offsets(cluster, clock, {tp: -1}, timeout_s=timeout_s))[tp].offset
    fetch = PartitionFetch("", OffsetRange(tp, start, end), read_committed=True, timeout_s=timeout_s)
    newest: dict[str, tuple[bytes, int] | None] = {}
    async for chunk in fetch.chunks_over(cluster):
        for at, header in chunk.batches:
            for record in records_of(chunk.data, at, header, limit_bytes=_DECODED_BYTES_MAX):
                key = (record.key or b"").decode(errors="replace")
                newest[key] = None if record.value is None else (record.value, record.timestamp_ms)
    # A record that this version cannot read is an error for its own sink only.
    wanted = newest if is_batch_sink(sink) else {sink: newest.get(sink)}
    found: dict[str, Stored] = {}
    for key, value in wanted.items():
        if value is not None:
            with _of_others(key != sink):
                found[key] = Stored(decode(key, value[0]), value[1])
    return found


def _of_others(others: bool) -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(DecisionProblem) if others else contextlib.nullcontext()


class DecisionWriter:
    """Step 1 when it is opened, and step 3: writes decisions of the sink until another driver fences it."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls, bootstrap: str, security: Security, sink: str, cluster: Cluster, timeout_s: float
    ) -> AsyncIterator[DecisionWriter]:
        await _ensure_topic(bootstrap, security, cluster, timeout_s)
        async with Producer(
            bootstrap,
            security=security,
            transactional_id=sink,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            compression="gzip",
            linger_ms=0,
            max_block_ms=round(timeout_s * 1000),
            max_request_size=_RECORD_BYTES_MAX * 8,
        ) as producer:
            yield cls(producer)

    async def write(self, decisions: Mapping[str, Decision | None]) -> None:
        """All or none of them. None is for a sink that is not used again."""
        async with self._producer.transaction():
            for sink, decision in decisions.items():
                value = None if decision is None else encode(sink, decision)
                await self._producer.send_and_wait(
                    TOPIC, value, key=sink.encode(), partition=partition_of(sink)
                )


async def _ensure_topic(bootstrap: str, security: Security, cluster: Cluster, timeout_s: float) -> None:
    try:
        await cluster.layout(TOPIC, auto_create=False, timeout_s=timeout_s)
        return
    except UnknownTopicOrPartition:
        pass
    async with Admin(bootstrap, security=security) as admin:
        replicas = min(_REPLICAS, len((await admin.describe_cluster()).brokers))
        configs = dict(_CONFIGS)
        if replicas == _REPLICAS:
            configs["min.insync.replicas"] = "2"
        with contextlib.suppress(TopicAlreadyExists):
            await admin.create_topics([NewTopic(TOPIC, _PARTITIONS, replicas, configs)])
