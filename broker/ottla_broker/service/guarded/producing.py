"""Produce: Write on each topic, and on the transactional id. [S]"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_broker.acl import Operation
from ottla_broker.requests import Maybe, Outcome, Write
from ottla_broker.service.access import TOPIC, TRANSACTIONAL_ID, Access
from ottla_broker.service.producing import ProduceSteps, Producing


class GuardedProducing:
    __slots__ = ("_access", "_may_write", "_produce", "_service", "_writable")

    def __init__(self, service: Producing, access: Access) -> None:
        self._service = service
        self._access = access
        self._produce = service.produce
        self._may_write = access.may_write
        self._writable = access.writable

    def produce(self, writes: Sequence[Write], *, acks: int, timeout_s: float) -> Maybe[list[Outcome]]:
        writable = self._writable
        for write in writes:
            if write.tp.topic not in writable:
                writes = self._refused(writes)
                break
        return self._produce(writes, acks=acks, timeout_s=timeout_s)

    def produce_in_steps(
        self,
        writes: Sequence[Write],
        *,
        acks: int,
        timeout_s: float,
        transactional_id: str | None = None,
        adds_partitions: bool = False,
    ) -> ProduceSteps:
        if transactional_id is not None:
            self._access.check(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
        return self._service.produce_in_steps(
            self._refused(writes),
            acks=acks,
            timeout_s=timeout_s,
            transactional_id=transactional_id,
            adds_partitions=adds_partitions,
        )

    def _refused(self, writes: Sequence[Write]) -> list[Write]:
        """With refusals of those that are not allowed."""
        return [
            write
            if write.refusal is not None or self._may_write(write.tp.topic)
            else write._replace(refusal=self._access.refusal(Operation.WRITE, TOPIC, write.tp.topic))
            for write in writes
        ]
