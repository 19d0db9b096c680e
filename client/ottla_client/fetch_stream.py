"""The Fetch stream to one broker: sends lists of partitions, receives their batches. [S]"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla_client.background import Background
from ottla_client.connection import Broker, exception_of
from ottla_client.consumer_machine import Want
from ottla_client.request_stream import RequestStream
from ottla_core.errors import RequestError
from ottla_core.pb import broker_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)


class FetchLimits(NamedTuple):
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    read_committed: bool
    rack: str = ""


class FetchStream(RequestStream[list[Want]]):
    method = "Fetch"

    def __init__(
        self,
        broker: Broker,
        *,
        limits: FetchLimits,
        clock: Clock,
        background: Background,
        on_answer: Callable[[Want, pb.FetchedPartition, RequestError | None], None],
        on_done: Callable[[], None],
        on_lost: Callable[[Any, list[list[Want]]], None],
    ) -> None:
        self._limits = limits
        self._on_answer = on_answer
        self._on_done = on_done
        super().__init__(broker, clock=clock, background=background, on_lost=on_lost)

    def request(self, correlation: int, item: list[Want]) -> pb.FetchRequest:
        return pb.FetchRequest(
            correlation=correlation,
            max_wait_ms=self._limits.max_wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.max_bytes,
            read_committed=self._limits.read_committed,
            rack=self._limits.rack,
            partitions=[
                pb.FetchPartition(
                    topic=want.tp.topic,
                    partition=want.tp.partition,
                    offset=want.offset,
                    max_bytes=want.max_bytes,
                    leader_epoch=want.leader_epoch,
                )
                for want in item
            ],
        )

    def answered(self, item: list[Want], answer: pb.FetchResponse) -> bool:
        whole = exception_of(answer.error) if answer.HasField("error") else None
        if whole is None and len(answer.partitions) != len(item):
            log.error("%s answered for other partitions than requested; reconnecting", self.broker.address)
            return False
        if whole is not None:
            nothing = pb.FetchedPartition()
            for want in item:
                self._on_answer(want, nothing, whole)
        else:
            for want, got in zip(item, answer.partitions, strict=True):
                self._on_answer(want, got, exception_of(got.error) if got.HasField("error") else None)
        self._on_done()
        return True
