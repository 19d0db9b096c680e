"""Fetch, offsets, records to delete: the rights on each topic. [S]"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from ottla_broker.acl import CLUSTER_NAME, Operation
from ottla_broker.log.producers import ProducerDescription
from ottla_broker.requests import EpochEnd, Fetched, FetchWant, FoundOffset, Maybe, ProducerIdentity
from ottla_broker.service.access import CLUSTER, TOPIC, Access
from ottla_broker.service.delayed_fetch import Ask, FetchSteps, Polled
from ottla_broker.service.records import RecordService
from ottla_core.ids import NO_EPOCH, TopicPartition


class GuardedRecords:
    __slots__ = ("_access", "_may_read", "_readable", "_service")

    def __init__(self, service: RecordService, access: Access) -> None:
        self._service = service
        self._access = access
        self._may_read = access.may_read
        self._readable = access.readable

    def fetch(
        self,
        wants: Sequence[FetchWant],
        *,
        max_wait_s: float,
        min_bytes: int,
        max_bytes: int,
        read_committed: bool = False,
        ask: Ask | None = None,
        rack: str | None = None,
        polled: Polled | None = None,
    ) -> Maybe[list[Fetched]]:
        return self._service.fetch(
            self._checked(wants),
            max_wait_s=max_wait_s,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            read_committed=read_committed,
            ask=ask,
            rack=rack,
            polled=polled,
        )

    def fetch_in_steps(
        self,
        wants: Sequence[FetchWant],
        *,
        max_wait_s: float,
        min_bytes: int,
        max_bytes: int,
        read_committed: bool = False,
        ask: Ask | None = None,
        rack: str | None = None,
        polled: Polled | None = None,
    ) -> FetchSteps:
        return self._service.fetch_in_steps(
            self._checked(wants),
            max_wait_s=max_wait_s,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            read_committed=read_committed,
            ask=ask,
            rack=rack,
            polled=polled,
        )

    def _checked(self, wants: Sequence[FetchWant]) -> Sequence[FetchWant]:
        may_read, readable = self._may_read, self._readable
        for want in wants:
            if want.tp.topic not in readable:
                break
        else:
            return wants
        return [
            want
            if may_read(want.tp.topic)
            else want._replace(refusal=self._access.refusal(Operation.READ, TOPIC, want.tp.topic))
            for want in wants
        ]

    def list_offset(
        self,
        tp: TopicPartition,
        timestamp_ms: int,
        *,
        leader_epoch: int = NO_EPOCH,
        read_committed: bool = False,
    ) -> Maybe[FoundOffset]:
        self._access.check(Operation.DESCRIBE, TOPIC, tp.topic)
        return self._service.list_offset(
            tp, timestamp_ms, leader_epoch=leader_epoch, read_committed=read_committed
        )

    def delete_records(self, tp: TopicPartition, offset: int, timeout_s: float) -> Maybe[int]:
        self._access.check(Operation.DELETE, TOPIC, tp.topic)
        return self._service.delete_records(tp, offset, timeout_s)

    def epoch_end(self, tp: TopicPartition, epoch: int, current_leader_epoch: int) -> EpochEnd:
        self._access.check(Operation.DESCRIBE, TOPIC, tp.topic)
        return self._service.epoch_end(tp, epoch, current_leader_epoch)

    def producers(self, tp: TopicPartition) -> list[ProducerDescription]:
        self._access.check(Operation.READ, TOPIC, tp.topic)
        return self._service.producers(tp)

    def init_producer_id(self) -> Awaitable[ProducerIdentity]:
        # KIP-679: Write on any topic implies IdempotentWrite.
        if not self._access.may_somewhere(Operation.WRITE, TOPIC):
            self._access.check(Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME)
        return self._service.init_producer_id()
