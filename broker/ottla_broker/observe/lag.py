"""Consumer lag in records and in seconds, under the names of kafka_exporter. [S]

The coordinator of a group has its committed offsets, leaders have the ends and timestamps of the partitions. When
Prometheus asks a coordinator, it asks the leaders, one request per broker.

Lag in seconds is the age of the oldest record that is not committed yet, by the record's own timestamp; 0 if all
is committed. Timestamps come from batch headers: within a batch they are interpolated.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import structlog

from ottla_broker.exposed import Family, Sample
from ottla_broker.log.log import Log
from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.partition.host import PartitionHost
from ottla_broker.service.groups import GroupService
from ottla_core.errors import CorruptMessage, RequestError
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload
from ottla_core.ports.peers import PeerUnavailable

_log = structlog.get_logger("ottla.metrics")

#: Of one broker's answer; a scrape has seconds, and shows what is known then.
_TIMEOUT_S = 1.5
#: Partitions per request between brokers: tens of KB of JSON.
_PARTITIONS_PER_CALL = 500
_NAME = "offset_times"


class Behind(NamedTuple):
    """What a leader says of an offset."""

    end: int
    #: Timestamp of the first record at or after the offset; None if there is none, or it has no timestamp.
    timestamp_ms: int | None


class Lag(NamedTuple):
    group: str
    tp: TopicPartition
    committed: int
    behind: Behind | None

    @property
    def records(self) -> int | None:
        return None if self.behind is None else max(0, self.behind.end - self.committed)

    def seconds(self, now_ms: int) -> float | None:
        if self.behind is None:
            return None
        if self.behind.end <= self.committed:
            return 0.0
        if self.behind.timestamp_ms is None:
            return None
        return max(0, now_ms - self.behind.timestamp_ms) / 1000


class LagMetrics:
    def __init__(
        self,
        broker_id: int,
        groups: GroupService,
        host: PartitionHost,
        metadata: Metadata,
        rpc: BrokerRpc,
        clock: Clock,
        offload: Offload,
        *,
        series_max: int,
    ) -> None:
        self._broker_id = broker_id
        self._groups = groups
        self._host = host
        self._metadata = metadata
        self._rpc = rpc
        self._clock = clock
        self._offload = offload
        self._max = series_max
        self._lags: list[Lag] = []
        self._members: dict[str, int] = {}
        self._omitted = 0
        rpc.answered_by(_NAME, self._answer)

    # ------------------------------------------------------------------ collecting

    async def refresh(self) -> None:
        groups = list(self._groups.committed())
        wanted = [(each.group, tp, offset) for each in groups for tp, offset in each.offsets.items()]
        shown = wanted[: self._max]
        behind = await self._ask_leaders({(tp, offset) for _, tp, offset in shown})
        self._lags = [Lag(group, tp, offset, behind.get((tp, offset))) for group, tp, offset in shown]
        self._members = {each.group: each.members for each in groups[: self._max]}
        self._omitted = len(wanted) - len(shown)

    async def _ask_leaders(
        self, wanted: set[tuple[TopicPartition, int]]
    ) -> Mapping[tuple[TopicPartition, int], Behind]:
        image = self._metadata.image
        by_leader: dict[int, list[tuple[TopicPartition, int]]] = {}
        for tp, offset in sorted(wanted):
            state = image.partition(tp)
            if state is not None and state.leader != NO_BROKER:
                by_leader.setdefault(state.leader, []).append((tp, offset))
        calls = [
            (some, self._ask(leader, some)) for leader, pairs in by_leader.items() for some in _chunks(pairs)
        ]
        answers = await asyncio.gather(*(call for _, call in calls))
        return {
            pair: found
            for (some, _), answer in zip(calls, answers, strict=True)
            for pair, found in zip(some, answer, strict=True)
            if found is not None
        }

    async def _ask(self, leader: int, pairs: Sequence[tuple[TopicPartition, int]]) -> list[Behind | None]:
        if leader == self._broker_id:
            return await self._look_up(pairs)
        body = {"partitions": [[tp.topic, tp.partition, offset] for tp, offset in pairs]}
        try:
            rows = await self._rpc.ask(leader, _NAME, body, _TIMEOUT_S)
            found = [None if row is None else Behind(int(row[0]), row[1]) for row in rows]
        except (PeerUnavailable, RequestError, ValueError, TypeError, IndexError) as error:
            _log.warning("lag not known", leader=leader, reason=str(error))
            return [None] * len(pairs)
        return found if len(found) == len(pairs) else [None] * len(pairs)

    async def _answer(self, body: Body) -> object:
        pairs = [
            (TopicPartition(str(topic), int(partition)), int(offset))
            for topic, partition, offset in body["partitions"][:_PARTITIONS_PER_CALL]
        ]
        return await self._look_up(pairs)

    async def _look_up(self, pairs: Sequence[tuple[TopicPartition, int]]) -> list[Behind | None]:
        rows: list[tuple[Log, int, int] | None] = []
        for tp, offset in pairs:
            try:
                partition = self._host.find(tp)
                partition.check_leader()
                rows.append((partition.log, offset, partition.high_watermark))
            except RequestError:
                rows.append(None)
        return await self._offload.run(lambda: [None if row is None else _behind(*row) for row in rows])

    # ------------------------------------------------------------------ showing

    def families(self) -> Iterator[Family]:
        now_ms = self._clock.wall_ms()
        lags = self._lags
        yield _per_partition(
            "kafka_consumergroup_current_offset", "Committed offset of a group.",
            [(lag, lag.committed) for lag in lags],
        )  # fmt: skip
        yield _per_partition(
            "kafka_consumergroup_lag", "Records after the committed offset of a group.",
            [(lag, lag.records) for lag in lags],
        )  # fmt: skip
        yield _per_partition(
            "ottla_consumergroup_lag_seconds",
            "Age of the oldest record after the committed offset of a group; 0 if there is none.",
            [(lag, lag.seconds(now_ms)) for lag in lags],
        )
        sums: Counter[tuple[str, str]] = Counter()
        offsets: Counter[tuple[str, str]] = Counter()
        for lag in lags:
            sums[lag.group, lag.tp.topic] += lag.records or 0
            offsets[lag.group, lag.tp.topic] += lag.committed
        yield _per_topic("kafka_consumergroup_lag_sum", "Lag of a group in all partitions of a topic.", sums)
        yield _per_topic(
            "kafka_consumergroup_current_offset_sum",
            "Sum of the committed offsets of a group in a topic.",
            offsets,
        )
        yield Family(
            "kafka_consumergroup_members", "gauge", "Members of a group.",
            [Sample("", (("consumergroup", group),), count) for group, count in self._members.items()],
        )  # fmt: skip
        yield Family(
            "ottla_metrics_lags_omitted", "gauge",
            "Committed offsets on this broker without lag metrics, beyond metrics.lags.max.",
            [Sample("", (), self._omitted)],
        )  # fmt: skip


def _behind(log: Log, offset: int, end: int) -> Behind | None:
    """Runs on a thread."""
    if offset >= end:
        return Behind(end, None)
    try:
        return Behind(end, log.timestamp_at(max(offset, log.start_offset), limit_offset=end))
    except (OSError, ValueError, CorruptMessage, RequestError):
        return Behind(end, None)  # Retired meanwhile, or damaged, which a fetch reports.


def _chunks(pairs: list[tuple[TopicPartition, int]]) -> Iterator[list[tuple[TopicPartition, int]]]:
    for start in range(0, len(pairs), _PARTITIONS_PER_CALL):
        yield pairs[start : start + _PARTITIONS_PER_CALL]


def _per_partition(name: str, doc: str, values: Sequence[tuple[Lag, float | None]]) -> Family:
    return Family(
        name,
        "gauge",
        doc,
        [
            Sample(
                "",
                (("consumergroup", lag.group), ("topic", lag.tp.topic), ("partition", str(lag.tp.partition))),
                value,
            )
            for lag, value in values
            if value is not None
        ],
    )


def _per_topic(name: str, doc: str, values: Counter[tuple[str, str]]) -> Family:
    return Family(
        name,
        "gauge",
        doc,
        [
            Sample("", (("consumergroup", group), ("topic", topic)), value)
            for (group, topic), value in values.items()
        ],
    )
