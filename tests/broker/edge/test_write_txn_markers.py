"""WriteTxnMarkers with many markers: written side by side, answered in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.edge.kafka.handlers import k27_write_txn_markers
from ottla_core.errors import InvalidProducerEpoch, RequestError
from ottla_core.ids import TopicPartition


class Slow:
    """Replicates each marker in 10 ms, and refuses those of every third producer."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.busy = self.busiest = 0

    async def write_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Sequence[RequestError | None]:
        self.begun.append(marker.producer.producer_id)
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        await asyncio.sleep(0.01)
        self.busy -= 1
        refused = marker.producer.producer_id % 3 == 0
        return [InvalidProducerEpoch("old") if refused else None for _ in partitions]


def _marker(number: int) -> dict[str, Any]:
    return {
        "producer_id": number,
        "producer_epoch": 0,
        "coordinator_epoch": 0,
        "transaction_result": True,
        "topics": [{"name": "orders", "partition_indexes": [0, 1]}],
    }


async def test_many_markers_are_written_side_by_side_and_answered_in_order() -> None:
    slow = Slow()
    context = SimpleNamespace(services=SimpleNamespace(transactions=slow), failed=lambda error: error.code)
    request = SimpleNamespace(fields=lambda: {"markers": [_marker(number) for number in range(1000)]})

    async with asyncio.timeout(5):  # One by one, they would take ten seconds.
        reply = await cast(Any, k27_write_txn_markers.handle(cast(Any, context), cast(Any, request)))

    assert slow.begun == list(range(1000))
    assert 1 < slow.busiest <= 32
    assert [each["producer_id"] for each in reply["markers"]] == list(range(1000))
    for each in reply["markers"]:
        (topic,) = each["topics"]
        assert [row["error_code"] != 0 for row in topic["partitions"]] == [each["producer_id"] % 3 == 0] * 2
