"""The partitions of a broker follow the image, by topic id and not by name."""

from __future__ import annotations

from types import MappingProxyType
from uuid import UUID

from ottla_broker.controller.image import ClusterImage, PartitionImage, TopicImage
from ottla_broker.log.dirs import LogDirs
from ottla_broker.metrics import Metrics
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import ACKS_ALL
from ottla_core.ids import TopicPartition
from ottla_core.real.chance import RealChance
from sim.batches import Rec, make_batch
from sim.clock import ManualClock
from sim.disk import SimDisk
from sim.loop import SimOffload

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)
FIRST, SECOND = UUID(int=1), UUID(int=2)


def image(revision: int, topic_id: UUID | None) -> ClusterImage:
    if topic_id is None:
        return ClusterImage("c", revision)
    state = PartitionImage((1,), leader=1, isr=(1,), revision=revision)
    topics = {"t": TopicImage("t", topic_id, {}, (state,), revision)}
    return ClusterImage("c", revision, topics=MappingProxyType(topics))


def host_on(disk: SimDisk) -> PartitionHost:
    dirs = LogDirs(disk, ["/data/log"], broker_id=1, chance=RealChance())
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


async def test_a_topic_that_is_replaced_before_the_admission_is_begun_anew() -> None:
    host = host_on(SimDisk())
    host.open_logs(image(2, FIRST))
    host.on_image(image(2, FIRST), image(3, SECOND))
    host.admit(image(3, SECOND))
    assert host.find(TP).topic_id == SECOND and host.find(TP).is_leader
