"""The service of transactions over a shard that agrees to everything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla_broker.metadata.image import ClusterImage
from ottla_broker.requests import ProducerIdentity
from ottla_broker.service.transactions import TransactionService
from ottla_broker.txn.messages import AddPartitions, InitProducer, PartitionsReply
from ottla_core.ids import TopicPartition

PRODUCER = ProducerIdentity(7, 0)


class AgreeingService(TransactionService):
    def __init__(self, image: ClusterImage, timeout_max_ms: int = 1000) -> None:
        self._metadata = SimpleNamespace(image=image)  # type: ignore[assignment]
        self._timeout_max_ms = timeout_max_ms
        self.added: list[TopicPartition] = []

    async def _ask(self, request: Any) -> Any:
        if isinstance(request, InitProducer):
            return PRODUCER
        if isinstance(request, AddPartitions):
            self.added += request.partitions
        return PartitionsReply((None,) * len(request.partitions))
