"""Finds transactions that are open in a partition and that nothing will end, and aborts those without an owner. [S]

They block `read_committed` readers, retention and compaction. Open for longer than `transaction.max.timeout.ms`:

* S1: where no coordinator exists, every such transaction is aborted: it is of a version that had none.
* S2: else the coordinators are asked. A transaction hangs if none has one of its producer to end in this partition, in
  two rounds, and if it is still open after their answer. A coordinator forgets a transaction only when its markers are
  written, so neither a late marker nor a prepared transaction looks like that.
* S3: a hanging transaction is aborted if no coordinator knows its producer id. One whose coordinator is known may have
  been committed there, which an abort would contradict: it is counted, and left to `ottla transactions abort`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from typing import NamedTuple, Protocol

import structlog

from ottla_broker.config import LogDirsConfig
from ottla_broker.metrics import LogProbe
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import Partition
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock

_log = structlog.get_logger("ottla.housekeeping")

#: Markers written before other work gets its turn: about a millisecond.
_MARKERS_PER_TURN = 50
#: Partitions checked before other work gets its turn.
_HANDFUL = 100
#: Transactions that the coordinators are asked about in one round, oldest first in each partition.
_SUSPECTS_MAX = 500


class Coordinators(Protocol):
    @property
    def exist(self) -> bool: ...

    def owned(
        self, producer_ids: Collection[int]
    ) -> Awaitable[Mapping[int, frozenset[TopicPartition]] | None]: ...

    def abort(self, tp: TopicPartition, first_offset: int, /) -> Awaitable[None]: ...


class Suspect(NamedTuple):
    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int


class StaleTransactions:
    def __init__(
        self,
        host: PartitionHost,
        config: LogDirsConfig,
        clock: Clock,
        probe: LogProbe,
        coordinators: Coordinators | None,
    ) -> None:
        self._host = host
        self._timeout_ms = config.transaction_max_timeout_ms
        self._clock = clock
        self._probe = probe
        self._coordinators = coordinators
        #: Those that no coordinator will end, as of the last round.
        self._seen: frozenset[Suspect] = frozenset()

    async def check(self) -> None:
        if self._coordinators is None or not self._coordinators.exist:
            for partition in list(self._host):
                await self._abort_all(partition)
        else:
            await self._abort_orphans(self._coordinators)

    async def _abort_all(self, partition: Partition) -> None:
        """S1, with markers that are replicated like any batch."""
        producers = partition.log.producers
        while partition.is_leader and producers.first_undecided_offset is not None:
            now_ms = self._clock.wall_ms()
            stale = producers.stale_transactions(now_ms, self._timeout_ms, _MARKERS_PER_TURN)
            try:
                for one in stale:
                    partition.abort_transaction(one, now_ms)
                    self._note_aborted(
                        Suspect(partition.tp, one.producer_id, one.producer_epoch, one.first_offset)
                    )
            except RequestError as error:
                # No longer leader, or too few replicas in sync: the next round tries again.
                _log.warning("transaction not aborted yet", partition=str(partition.tp), error=str(error))
                return
            if len(stale) < _MARKERS_PER_TURN:
                return
            await self._clock.sleep(0)

    async def _abort_orphans(self, coordinators: Coordinators) -> None:
        suspects = await self._suspects()
        owned = await coordinators.owned({each.producer_id for each in suspects}) if suspects else {}
        if owned is None:
            return  # Not all coordinators answer: the next round asks again.
        hanging = frozenset(each for each in suspects if each.tp not in owned.get(each.producer_id, ()))
        lasting, self._seen = sorted(hanging & self._seen), hanging
        left = len(lasting)
        for each in lasting:
            if each.producer_id in owned:
                _log.warning("transaction hangs: its coordinator has ended it elsewhere", **_fields(each))
                continue
            try:
                # Refused unless this very transaction is still open.
                await coordinators.abort(each.tp, each.first_offset)
            except RequestError as error:
                _log.warning("transaction not aborted yet", error=str(error), **_fields(each))
            else:
                left -= 1
                self._note_aborted(each)
        self._probe.hanging_transactions = left

    async def _suspects(self) -> list[Suspect]:
        found: list[Suspect] = []
        now_ms = self._clock.wall_ms()
        for number, partition in enumerate(list(self._host), 1):
            if number % _HANDFUL == 0:
                await self._clock.sleep(0)
            room = _SUSPECTS_MAX - len(found)
            if not partition.is_leader or room <= 0:
                continue
            stale = partition.log.producers.stale_transactions(now_ms, self._timeout_ms, room)
            found += [Suspect(partition.tp, s.producer_id, s.producer_epoch, s.first_offset) for s in stale]
        return found

    def _note_aborted(self, suspect: Suspect) -> None:
        self._probe.hanging_aborted += 1
        _log.warning("transaction timed out without a coordinator; aborted", **_fields(suspect))


def _fields(suspect: Suspect) -> dict[str, object]:
    return {
        "partition": str(suspect.tp),
        "producer_id": suspect.producer_id,
        "producer_epoch": suspect.producer_epoch,
        "first_offset": suspect.first_offset,
    }
