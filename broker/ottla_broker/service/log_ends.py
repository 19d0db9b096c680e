"""Positions of logs, requested between brokers: an election among torn replicas needs them. [S]

The controller's caretaker asks (design rule 2), every broker answers for its replicas. A log that is not
on this broker, or is broken, has no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ottla_broker.controller.election import Position
from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.partition.host import PartitionHost
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

_TIMEOUT_S = 5.0


class LogEnds:
    def __init__(self, broker_id: int, host: PartitionHost, metadata: Metadata, rpc: BrokerRpc) -> None:
        self._broker_id = broker_id
        self._host = host
        self._metadata = metadata
        self._rpc = rpc
        rpc.answered_by("log_ends", self._answer)

    async def ask(self, broker_id: int, partitions: Sequence[tuple[UUID, int]]) -> list[Position | None]:
        """The positions at a broker, in order. PeerUnavailable or RequestError if it does not answer."""
        if broker_id == self._broker_id:
            return [self._end(topic_id, index) for topic_id, index in partitions]
        body = {"partitions": [[str(topic_id), index] for topic_id, index in partitions]}
        rows = await self._rpc.ask(broker_id, "log_ends", body, _TIMEOUT_S)
        return [None if row is None else (int(row[0]), int(row[1])) for row in rows]

    async def _answer(self, body: Body) -> object:
        return [self._end(UUID(topic_id), int(index)) for topic_id, index in body["partitions"]]

    def _end(self, topic_id: UUID, index: int) -> Position | None:
        name = self._metadata.image.names_by_id.get(topic_id)
        try:
            partition = None if name is None else self._host.find(TopicPartition(name, index))
        except RequestError:
            return None
        if partition is None or partition.topic_id != topic_id or partition.log.broken is not None:
            return None
        return partition.log.epochs.latest_epoch, partition.log.end_offset
