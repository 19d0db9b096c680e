"""A marker that is written between the coordinator's answer and the append refuses the append (rule 21, V3)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla_broker.log.producers import Marker, ProducerStates
from ottla_broker.requests import ProducerIdentity, Write
from ottla_broker.service.txn_verifying import TransactionVerifying
from ottla_core.errors import NotEnoughReplicas, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.records.batch import header_at
from sim.batches import Rec, make_batch, make_marker

TP = TopicPartition("t", 0)


class Coordinator:
    """Confirms each partition, after a marker of `ends` was written there."""

    def __init__(self, producers: ProducerStates, ends: int) -> None:
        self._producers, self._ends = producers, ends

    async def partitions_anywhere(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Sequence[RequestError | None]:
        marker = make_marker(commit=False, producer_id=self._ends)
        self._producers.update(header_at(marker), 0, Marker(False, 0))
        return [None] * len(partitions)


async def checked(ends: int) -> Write:
    producers = ProducerStates()
    partition = SimpleNamespace(check_leader=lambda: None, log=SimpleNamespace(producers=producers))
    host = SimpleNamespace(find=lambda tp: partition)
    verifying = TransactionVerifying(cast(Any, host), Coordinator(producers, ends))
    batch = make_batch([Rec(None, b"x", 0)], producer_id=7, epoch=0, sequence=0, transactional=True)
    (write,) = await verifying.verify("id", [Write(TP, batch)], False)
    assert write.refusal is None and write.check_transaction is not None
    return write


async def test_a_marker_of_the_producer_refuses_the_append() -> None:
    write = await checked(ends=7)
    assert write.check_transaction is not None
    with pytest.raises(NotEnoughReplicas):
        write.check_transaction()


async def test_a_marker_of_another_producer_does_not() -> None:
    write = await checked(ends=8)
    assert write.check_transaction is not None
    write.check_transaction()
