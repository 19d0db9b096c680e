"""How far consumer groups are behind, in records and in time: asked from the leaders of the partitions. [S]

The coordinator of a group has its committed offsets, leaders have the ends and timestamps of the partitions: one
request per broker. Used by the metrics (`observe/lag.py`) and by `Groups.DescribeLag`.

Lag in records is, as in Kafka, the end of the partition minus the committed offset. Lag in time is the age of the
oldest record that is not committed yet, by the record's own timestamp; 0 if there is none. Markers and records of
aborted transactions are not waited for. Timestamps come from batch headers: within a batch they are interpolated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import structlog

from ottla_broker.log.log import Log
from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.partition.host import PartitionHost
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
#: Of one group: a lookup takes tens of microseconds, and an answer has some hundred KB.
PARTITIONS_MAX = 10_000
NOT_COMMITTED = -1


class Behind(NamedTuple):
    """What a leader says of an offset."""

    end: int
    #: Timestamp of the first record at or after the offset; None if there is none, or it has no timestamp.
    timestamp_ms: int | None
    start: int = 0
    #: There are offsets up to the end, but none of a record that a read_committed consumer gets.
    all_read: bool = False


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
        if self.behind.all_read or self.behind.end <= max(self.committed, self.behind.start):
            return 0.0
        if self.behind.timestamp_ms is None:
            return None
        return max(0, now_ms - self.behind.timestamp_ms) / 1000


class GroupLags:
    def __init__(
        self,
        broker_id: int,
        host: PartitionHost,
        metadata: Metadata,
        rpc: BrokerRpc,
        clock: Clock,
        offload: Offload,
    ) -> None:
        self._broker_id = broker_id
        self._host = host
        self._metadata = metadata
        self._rpc = rpc
        self._clock = clock
        self._offload = offload
        rpc.answered_by(_NAME, self._answer)

    async def of(
        self, group: str, committed: Mapping[TopicPartition, int], topics: Iterable[str] = ()
    ) -> list[Lag]:
        """Lag at the committed offsets, and from the first record on in partitions of `topics` without one."""
        image = self._metadata.image
        positions = dict(committed)
        for name in topics:
            topic = image.topics.get(name)
            for index in range(0 if topic is None else len(topic.partitions)):
                positions.setdefault(TopicPartition(name, index), NOT_COMMITTED)
        shown = sorted(positions.items())[:PARTITIONS_MAX]
        behind = await self.ask_leaders({(tp, max(offset, 0)) for tp, offset in shown})
        return [Lag(group, tp, offset, behind.get((tp, max(offset, 0)))) for tp, offset in shown]

    def ms(self, lag: Lag) -> int | None:
        """Lag in time; None if it is not known."""
        seconds = lag.seconds(self._clock.wall_ms())
        return None if seconds is None else round(seconds * 1000)

    async def ask_leaders(
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
            found = [None if row is None else Behind(int(row[0]), *row[1:4]) for row in rows]
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
        return await self._offload.run(lambda: [None if row is None else behind(*row) for row in rows])


def behind(log: Log, offset: int, end: int) -> Behind | None:
    """Runs on a thread."""
    start = log.start_offset
    if max(offset, start) >= end:
        return Behind(end, None, start)
    try:
        found = log.next_record(max(offset, start), limit_offset=end)
    except (OSError, ValueError, CorruptMessage, RequestError):
        return Behind(end, None, start)  # Retired meanwhile, or damaged, which a fetch reports.
    return Behind(end, found.timestamp_ms, start, not found.exists)


def _chunks(pairs: list[tuple[TopicPartition, int]]) -> Iterator[list[tuple[TopicPartition, int]]]:
    for start in range(0, len(pairs), _PARTITIONS_PER_CALL):
        yield pairs[start : start + _PARTITIONS_PER_CALL]
