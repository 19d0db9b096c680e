"""The Produce stream to one leader: sends lists of batches, receives their outcomes. [S]"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ottla_client.accumulator import Batch
from ottla_client.background import Background
from ottla_client.connection import Broker, exception_of
from ottla_client.request_stream import RequestStream
from ottla_core.pb import broker_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)


class ProduceStream(RequestStream[list[Batch]]):
    method = "Produce"

    def __init__(
        self,
        broker: Broker,
        *,
        acks: int,
        timeout_ms: int,
        transactional_id: str,
        clock: Clock,
        background: Background,
        on_answer: Callable[[Batch, pb.PartitionProduced], None],
        on_lost: Callable[[Any, list[list[Batch]]], None],
    ) -> None:
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id
        self._on_answer = on_answer
        super().__init__(broker, clock=clock, background=background, on_lost=on_lost)

    def request(self, correlation: int, item: list[Batch]) -> pb.ProduceRequest:
        return pb.ProduceRequest(
            correlation=correlation,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            transactional_id=self._transactional_id,
            partitions=[
                pb.PartitionRecords(
                    topic=batch.lane.tp.topic, partition=batch.lane.partition, records=batch.payload
                )
                for batch in item
            ],
        )

    def written(self, item: list[Batch]) -> bool:
        if self._acks != 0:
            return False
        unknown = pb.PartitionProduced(base_offset=-1, log_append_time_ms=-1)
        for batch in item:
            self._on_answer(batch, unknown)
        return True

    def answered(self, item: list[Batch], answer: pb.ProduceResponse) -> bool:
        if answer.HasField("error"):
            refusal = pb.PartitionProduced(error=answer.error)
            for batch in item:
                self._on_answer(batch, refusal)
            return True
        if len(answer.partitions) != len(item):
            log.error("%s answered for other partitions than requested; reconnecting", self.broker.address)
            return False
        for batch, outcome in zip(item, answer.partitions, strict=True):
            self._on_answer(batch, outcome)
        return True

    def unasked(self, answer: pb.ProduceResponse) -> None:
        """acks=0 has no waiter, so log the refusal."""
        for outcome in answer.partitions:
            if outcome.HasField("error"):
                refusal = exception_of(outcome.error)
                log.warning("acks=0: %s-%d refused records: %s", outcome.topic, outcome.partition, refusal)
