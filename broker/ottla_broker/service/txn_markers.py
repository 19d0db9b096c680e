"""Transaction markers between brokers: the coordinator delivers them, leaders of partitions write them (rule 21). [S]

A delivery groups partitions by leader, one request per broker, and repeats what failed for a moment; partitions that
are still missing go back to the coordinator's shard, which decides on them again, so that a partition without a leader
holds no place in the queue for long. A marker counts when it is replicated.

Markers for `__consumer_offsets` go through the group coordinator's shard, which makes the offsets of the transaction
visible or drops them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol

import structlog

from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.requests import Maybe, ProducerIdentity
from ottla_broker.service.groups import OFFSETS_TOPIC
from ottla_broker.txn.messages import MarkersWritten, WriteMarkers
from ottla_core.errors import InvalidProducerEpoch, InvalidTxnState, RequestError, error_from_code
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import PeerUnavailable

_log = structlog.get_logger("ottla.transactions")

_RPC = "write_markers"
#: Attempts before missing partitions go back to the shard, and the pause between them: a new leader is elected within
#: a second or two.
_ATTEMPTS = 4
_PAUSE_S = 0.1
#: How long a marker may take to be replicated.
_TIMEOUT_S = 5.0
#: Time reserved for the response to travel back.
_MARGIN_S = 1.0
#: Requests to one broker at once; below the number that it accepts (`broker_rpc.ANSWERING_OF_KIND_MAX`).
_REQUESTS_MAX = 40
#: Markers that one request writes before others get their turn: about a millisecond.
_PER_TURN = 50

Results = list[RequestError | None]


class EndsOffsets(Protocol):
    """The group coordinator, for offsets that were committed in a transaction."""

    def end_transaction(self, partition: int, marker: TransactionMarker) -> Maybe[object]: ...


class TransactionMarkers:
    def __init__(
        self,
        broker_id: int,
        host: PartitionHost,
        metadata: Metadata,
        groups: EndsOffsets,
        rpc: BrokerRpc,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._host = host
        self._metadata = metadata
        self._groups = groups
        self._rpc = rpc
        self._clock = clock
        self._limits: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_REQUESTS_MAX)
        )
        rpc.answered_by(_RPC, self._answer)

    # ------------------------------------------------------------------ at the coordinator

    async def deliver(self, effect: WriteMarkers, coordinator_epoch: int) -> MarkersWritten:
        """Write the markers of a decided transaction, and say where they are still missing."""
        marker = TransactionMarker(effect.producer, coordinator_epoch, effect.commits)
        missing = effect.partitions
        for attempt in range(_ATTEMPTS):
            if attempt:
                await self._clock.sleep(_PAUSE_S)
            missing = await self._deliver_once(marker, missing)
            if not missing:
                break
        return MarkersWritten(effect.transactional_id, effect.producer, missing)

    async def _deliver_once(
        self, marker: TransactionMarker, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        image = self._metadata.image
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in sorted(partitions):
            found = image.partition(tp)
            if found is not None:  # Else the topic was deleted, and the transaction's records with it.
                by_leader.setdefault(found.leader, []).append(tp)
        without = by_leader.pop(NO_BROKER, [])
        answers = await asyncio.gather(
            *(self._send(leader, marker, wanted) for leader, wanted in by_leader.items())
        )
        return frozenset(without).union(*answers)

    async def _send(
        self, leader: int, marker: TransactionMarker, partitions: list[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """The partitions whose markers have to be sent again."""
        try:
            if leader == self._broker_id:
                errors = await self.write(marker, partitions)
            else:
                async with self._limits[leader]:
                    errors = await self._ask(leader, marker, partitions)
        except (RequestError, PeerUnavailable) as error:
            _log.info("transaction markers not delivered yet", broker=leader, reason=str(error))
            return frozenset(partitions)
        return frozenset(
            tp
            for tp, error in zip(partitions, errors, strict=True)
            if error is not None and not _is_over(error)
        )

    async def _ask(self, leader: int, marker: TransactionMarker, partitions: list[TopicPartition]) -> Results:
        body = {
            "producer": list(marker.producer),
            "coordinator_epoch": marker.coordinator_epoch,
            "commits": marker.commits,
            "partitions": [[tp.topic, tp.partition] for tp in partitions],
        }
        rows = await self._rpc.ask(leader, _RPC, body, _TIMEOUT_S + _MARGIN_S)
        if len(rows) != len(partitions):
            raise PeerUnavailable(f"Broker {leader} answered {len(rows)} of {len(partitions)} markers.")
        return [None if row is None else error_from_code(int(row[0]), str(row[1])) for row in rows]

    # ------------------------------------------------------------------ at the leader of the partitions

    async def _answer(self, body: Body) -> object:
        producer_id, epoch = body["producer"]
        marker = TransactionMarker(
            ProducerIdentity(int(producer_id), int(epoch)),
            int(body["coordinator_epoch"]),
            bool(body["commits"]),
        )
        wanted = [TopicPartition(str(topic), int(index)) for topic, index in body["partitions"]]
        errors = await self.write(marker, wanted)
        return [None if error is None else [error.code, error.message] for error in errors]

    async def write(self, marker: TransactionMarker, partitions: Sequence[TopicPartition]) -> Results:
        """Write the marker to partitions that this broker leads, and wait until it is replicated."""
        waits: list[Awaitable[object] | RequestError | None] = []
        for number, tp in enumerate(partitions, 1):
            try:
                waits.append(self._begin(marker, tp))
            except RequestError as error:
                waits.append(error)
            if number % _PER_TURN == 0:
                await self._clock.sleep(0)
        return await asyncio.gather(*(_outcome(wait) for wait in waits))

    async def abort_at(self, tp: TopicPartition, first_offset: int) -> None:
        """Abort the transaction that begins at this offset of a partition that this broker leads."""
        partition = self._host.find(tp)
        partition.check_leader()
        for each in partition.log.producers.described():
            if each.txn_first_offset == first_offset >= 0:
                break
        else:
            raise InvalidTxnState(f"No open transaction begins at offset {first_offset} of {tp}.")
        producer = ProducerIdentity(each.producer_id, each.producer_epoch)
        # Without an earlier marker any epoch is accepted; as kafka-transactions, the lowest one.
        marker = TransactionMarker(producer, max(each.coordinator_epoch, 0), False)
        (error,) = await self.write(marker, (tp,))
        if error is not None:
            raise error

    def _begin(self, marker: TransactionMarker, tp: TopicPartition) -> Awaitable[object] | None:
        partition = self._host.find(tp)
        if tp.topic == OFFSETS_TOPIC:
            partition.log.producers.check_marker(marker.producer, marker.coordinator_epoch)
            reply = self._groups.end_transaction(tp.partition, marker)
            return reply if isinstance(reply, Awaitable) else None
        appended = partition.end_transaction(
            marker.producer,
            marker.coordinator_epoch,
            commits=marker.commits,
            now_ms=self._clock.wall_ms(),
        )
        return partition.acknowledged(appended, ACKS_ALL, _TIMEOUT_S)


def _is_over(error: RequestError) -> bool:
    """True if the partition has accepted a later epoch of the producer: a marker with that epoch has ended it."""
    return isinstance(error, InvalidProducerEpoch)


async def _outcome(wait: Awaitable[object] | RequestError | None) -> RequestError | None:
    if isinstance(wait, RequestError):
        return wait
    try:
        if wait is not None:
            await wait
    except RequestError as error:
        return error
    return None
