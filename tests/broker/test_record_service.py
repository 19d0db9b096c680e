"""Offsets for times: never of records that nobody may read yet; and which records nobody may delete."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla_broker.metrics import Metrics
from ottla_broker.requests import MAX_TIMESTAMP, FoundOffset
from ottla_broker.service.records import RecordService
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import InvalidTopicException, PolicyViolation
from ottla_core.ids import NO_EPOCH, TopicPartition
from ottla_core.real.clock import RealClock

T0 = TopicPartition("t", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)


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
    nothing = cast(Any, None)
    return RecordService(cast(Any, host), nothing, RealClock(), AtOnce(), Metrics(topics_max=1), nothing)


@pytest.mark.parametrize(
    ("high_watermark", "told"),
    [(8, FoundOffset(7, 1000, 3)), (7, FoundOffset(-1, -1, NO_EPOCH)), (0, FoundOffset(-1, -1, NO_EPOCH))],
)
async def test_the_newest_record_is_listed_once_it_is_committed(
    high_watermark: int, told: FoundOffset
) -> None:
    found = service(high_watermark=high_watermark, newest=7).list_offset(T0, MAX_TIMESTAMP)
    assert inspect.isawaitable(found)
    assert await found == told


def with_policy(policy: str) -> RecordService:
    async def delete_records(offset: int, timeout_s: float) -> int:
        return offset

    config = TopicConfig.resolve({"cleanup.policy": policy}, {})
    partition = SimpleNamespace(delete_records=delete_records, log=SimpleNamespace(config=config))
    host = SimpleNamespace(find=lambda tp: partition)
    nothing = cast(Any, None)
    return RecordService(cast(Any, host), nothing, RealClock(), AtOnce(), Metrics(topics_max=1), nothing)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
async def test_records_are_deleted_where_records_go_by_age(policy: str) -> None:
    deleted = with_policy(policy).delete_records(T0, 3, 1.0)
    assert inspect.isawaitable(deleted) and await deleted == 3


def test_records_of_a_compacted_topic_are_not_deleted() -> None:
    with pytest.raises(PolicyViolation):
        with_policy("compact").delete_records(T0, 3, 1.0)


def test_what_groups_have_committed_is_not_deleted_by_clients() -> None:
    with pytest.raises(InvalidTopicException):
        with_policy("compact,delete").delete_records(OFFSETS, -1, 1.0)
