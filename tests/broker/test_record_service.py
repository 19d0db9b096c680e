"""Offsets for times, as the service tells them: never of records that nobody may read yet."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla_broker.metrics import Metrics
from ottla_broker.requests import MAX_TIMESTAMP, FoundOffset
from ottla_broker.service.records import RecordService
from ottla_core.ids import NO_EPOCH, TopicPartition
from ottla_core.real.clock import RealClock

T0 = TopicPartition("t", 0)


class AtOnce:
    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


def service(*, high_watermark: int, newest: int) -> RecordService:
    """One partition, led here, whose newest record is at an offset of its own."""
    found = SimpleNamespace(offset=newest, timestamp_ms=1000, epoch=3)

    def max_timestamp(*, limit_offset: int | None = None) -> object:
        return found if limit_offset is None or newest < limit_offset else None

    partition = SimpleNamespace(
        check_leader=lambda epoch: None,
        high_watermark=high_watermark,
        image=SimpleNamespace(leader_epoch=3),
        log=SimpleNamespace(max_timestamp=max_timestamp),
    )
    host = SimpleNamespace(find=lambda tp: partition)
    return RecordService(cast(Any, host), cast(Any, None), RealClock(), AtOnce(), Metrics(topics_max=1))


@pytest.mark.parametrize(
    ("high_watermark", "told"),
    [(8, FoundOffset(7, 1000, 3)), (7, FoundOffset(-1, -1, NO_EPOCH)), (0, FoundOffset(-1, -1, NO_EPOCH))],
)
async def test_the_newest_record_is_told_once_it_is_committed(high_watermark: int, told: FoundOffset) -> None:
    found = service(high_watermark=high_watermark, newest=7).list_offset(T0, MAX_TIMESTAMP)
    assert inspect.isawaitable(found)
    assert await found == told
