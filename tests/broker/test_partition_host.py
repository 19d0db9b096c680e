"""The partitions of a broker follow the image, by topic id and not by name."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import pytest

from ottla_broker.log.dirs import LogDirs
from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_broker.metrics import Metrics
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import ACKS_ALL
from ottla_core.errors import KafkaStorageError
from ottla_core.ids import TopicPartition
from ottla_core.real.chance import RealChance
from sim.batches import Rec, make_batch
from sim.clock import ManualClock
from sim.disk import SimDisk
from sim.loop import SimOffload

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)
FIRST, SECOND = UUID(int=1), UUID(int=2)


def image(
    revision: int, topic_id: UUID | None, partitions: int = 1, config: dict[str, str] | None = None
) -> ClusterImage:
    if topic_id is None:
        return ClusterImage("c", revision)
    state = PartitionImage((1,), leader=1, isr=(1,), revision=revision)
    topics = {"t": TopicImage("t", topic_id, config or {}, (state,) * partitions, revision)}
    return ClusterImage("c", revision, topics=MappingProxyType(topics))


def host_on(disk: SimDisk, *folders: str) -> PartitionHost:
    dirs = LogDirs(disk, folders or ["/data/log"], broker_id=1, chance=RealChance())
    disk.make_dirs("/data")
    dirs.open(now_ms=NOW_MS)
    dirs.join_cluster("c")
    clock = ManualClock(NOW_MS)
    return PartitionHost(1, dirs, clock, SimOffload(clock, lambda: 0.0), Metrics(), lambda image: {})


async def test_a_topic_that_is_deleted_before_the_admission_is_not_joined_by_its_namesake() -> None:
    """Seed 32: the logs were open, the deletion came before the broker was admitted, and a new topic after it."""
    disk = SimDisk()
    before = host_on(disk)
    before.open_logs(image(2, FIRST))
    before.admit(image(2, FIRST))
    before.find(TP).append(make_batch([Rec(None, b"old", NOW_MS)]), ACKS_ALL, NOW_MS)
    disk.kill()

    host = host_on(disk)
    host.open_logs(image(2, FIRST))
    assert host.find(TP).log.end_offset == 1
    host.on_image(image(2, FIRST), image(3, None))
    host.admit(image(3, None))
    assert len(host) == 0
    host.on_image(image(3, None), image(4, SECOND))
    assert host.find(TP).topic_id == SECOND and host.find(TP).log.end_offset == 0


async def test_a_topic_replaced_before_the_admission_starts_empty() -> None:
    host = host_on(SimDisk())
    host.open_logs(image(2, FIRST))
    host.on_image(image(2, FIRST), image(3, SECOND))
    host.admit(image(3, SECOND))
    assert host.find(TP).topic_id == SECOND and host.find(TP).is_leader


async def test_a_failed_folder_costs_its_own_partitions_and_no_others() -> None:
    disk = SimDisk()
    host = host_on(disk, "/data/a", "/data/b")
    host.open_logs(image(2, FIRST, partitions=4))
    host.admit(image(2, FIRST, partitions=4))
    assert host.give_up_broken() == {}
    inside = {p.tp.partition for p in host if p.log.path.startswith("/data/a/")}
    batch = make_batch([Rec(None, b"value", NOW_MS)])
    disk.fail("append")
    with pytest.raises(KafkaStorageError):
        host.find(TopicPartition("t", min(inside))).append(batch, ACKS_ALL, NOW_MS)
    assert host.give_up_broken() == {FIRST: tuple(sorted(inside))} and len(inside) == 2
    for partition in host:
        if partition.tp.partition in inside:
            with pytest.raises(KafkaStorageError):
                partition.append(batch, ACKS_ALL, NOW_MS)
        else:
            partition.append(batch, ACKS_ALL, NOW_MS)


async def test_a_folder_that_cannot_be_synced_costs_its_own_partitions_and_not_the_broker() -> None:
    disk = SimDisk()
    host = host_on(disk, "/data/a", "/data/b")
    host.admit(image(2, None))
    disk.fail("sync_dir", "/data/a")
    host.on_image(image(2, None), image(3, FIRST, partitions=4))
    inside = {p.tp.partition for p in host if p.log.path.startswith("/data/a/")}
    assert host.give_up_broken() == {FIRST: tuple(sorted(inside))} and len(inside) == 2


async def test_a_log_that_cannot_be_removed_costs_its_folder_and_not_the_broker() -> None:
    disk = SimDisk()
    host = host_on(disk, "/data/a", "/data/b")
    host.open_logs(image(2, FIRST, partitions=4))
    host.admit(image(2, FIRST, partitions=4))
    disk.fail("rename", "t-0")
    host.on_image(image(2, FIRST, partitions=4), image(3, None))
    assert len(host) == 0
    host.on_image(image(3, None), image(4, SECOND))
    assert host.find(TP).topic_id == SECOND and host.find(TP).is_leader


async def test_what_cannot_be_opened_is_given_up_until_its_topic_goes() -> None:
    disk = SimDisk()
    host = host_on(disk, "/data/a", "/data/b")
    host.admit(image(2, None))
    disk.fail("open")
    host.on_image(image(2, None), image(3, FIRST))
    assert host.give_up_broken() == {FIRST: (0,)}
    host.on_image(image(3, FIRST), image(4, None))
    assert host.give_up_broken() == {}


async def test_a_log_that_cannot_be_flushed_at_the_start_costs_its_folder_and_not_the_broker() -> None:
    """Found by a world in which fsync fails: what a crash had left unflushed took the broker down when it came back."""
    disk, flushed = SimDisk(), image(2, FIRST, partitions=4, config={"flush.before.ack": "true"})
    before = host_on(disk, "/data/a", "/data/b")
    before.open_logs(flushed)
    before.admit(flushed)
    for partition in before:
        partition.append(make_batch([Rec(None, b"value", NOW_MS)]), ACKS_ALL, NOW_MS)
    disk.kill()

    host = host_on(disk, "/data/a", "/data/b")
    disk.fail("sync", "t-0/00000000000000000000.log")
    host.open_logs(flushed)
    lost = host.give_up_broken()[FIRST]
    assert 0 in lost and len(lost) == 2
    assert {p.tp.partition for p in host if p.log.broken is None} == {0, 1, 2, 3} - set(lost)


@pytest.mark.parametrize(("costs_s", "most"), [(0.0, 16), (0.001, 3), (1.0, 1)])
async def test_a_turn_of_the_loop_opens_as_many_partitions_as_its_time_allows(
    monkeypatch: pytest.MonkeyPatch, costs_s: float, most: int
) -> None:
    host, count = host_on(SimDisk()), 100
    turns: list[int] = []
    shipped = LogDirs.get_or_create

    def slow(dirs: LogDirs, *arguments: Any, **options: Any) -> Any:
        cast(Any, host._clock)._now += costs_s
        turns[-1] += 1
        return shipped(dirs, *arguments, **options)

    monkeypatch.setattr(LogDirs, "get_or_create", slow)
    turns.append(0)
    host.admit(image(2, FIRST, count))
    while len(list(host)) < count:
        turns.append(0)
        await asyncio.sleep(0)
    assert sum(turns) == count
    assert max(turns) == most
