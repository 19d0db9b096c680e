"""What the service checks before a request reaches the coordinator's shard."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.txn.transaction_service import PRODUCER, AgreeingService
from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_core.errors import CoordinatorNotAvailable, InvalidTransactionTimeout
from ottla_core.ids import TopicPartition

OLD, NEW = UUID(int=1), UUID(int=2)
KNOWN, GROWN, UNSEEN = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("late", 0)
IMAGE = ClusterImage("c", topics={"t": TopicImage("t", OLD, {}, (PartitionImage((1,)),))})


async def test_partitions_that_the_coordinator_does_not_know_are_refused_for_a_moment() -> None:
    """It would take them for deleted when the transaction ends, and drop their markers."""
    service, wanted = AgreeingService(IMAGE), [GROWN, KNOWN, UNSEEN]
    errors = await service.partitions_here("id", PRODUCER, wanted, adds=True, v2=True)
    assert [type(error) for error in errors] == [CoordinatorNotAvailable, type(None), CoordinatorNotAvailable]
    assert CoordinatorNotAvailable.retriable and service.added == [KNOWN]


async def test_a_topic_that_was_recreated_is_another_one() -> None:
    """The leader serves the new topic; the coordinator has seen neither the deletion nor the new one."""
    service = AgreeingService(IMAGE)
    body: dict[str, Any] = {"id": "id", "producer": list(PRODUCER), "partitions": [["t", 0]]}
    for adds in (True, False):
        answer: Any = await service._answer_partitions({**body, "adds": adds, "topic_ids": {"t": NEW.hex}})
        assert answer[0][0] == CoordinatorNotAvailable.code and service.added == []
    for topic_ids in ({"topic_ids": {"t": OLD.hex}}, {}):  # Brokers of an older version name no ids.
        assert await service._answer_partitions({**body, "adds": True, **topic_ids}) == [None]


async def test_the_longest_timeout_is_that_of_prepared_transactions() -> None:
    """Whatever `transaction.max.timeout.ms` allows: with that timeout each write would be refused."""
    service = AgreeingService(IMAGE, timeout_max_ms=2**31 - 1)
    with pytest.raises(InvalidTransactionTimeout):
        await service.init_producer("id", 2**31 - 1)
    assert await service.init_producer("id", 2**31 - 2) == PRODUCER
