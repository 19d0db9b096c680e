"""One broker's log folders, host and metrics around one compacted partition, or more, on a simulated disk."""

from __future__ import annotations

from types import MappingProxyType
from uuid import UUID

from broker.replication.cluster import InlineOffload
from ottla_broker.event_loop import next_turn
from ottla_broker.log.dirs import LogDirs
from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_broker.metrics import Metrics
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import ACKS_ALL, Partition
from ottla_broker.scheduler import Scheduler
from ottla_core.ids import TopicPartition
from ottla_core.real.chance import RealChance
from ottla_core.records.structure import RECORDS_PER_TURN
from sim.batches import Rec, make_batch
from sim.clock import ManualClock
from sim.disk import SimDisk

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)


class World:
    def __init__(
        self, *, partitions: int = 1, records_per_turn: int = RECORDS_PER_TURN, **config: str
    ) -> None:
        self.disk, self.metrics, self.clock = SimDisk(), Metrics(), ManualClock(NOW_MS)
        self.scheduler = Scheduler(self.clock.monotonic, next_turn, lambda _: None)
        self.disk.make_dirs("/data")
        self.dirs = LogDirs(
            self.disk,
            ["/data/log"],
            broker_id=1,
            chance=RealChance(),
            probe=self.metrics.log,
            records_per_turn=records_per_turn,
        )
        self.dirs.open(now_ms=NOW_MS)
        self.dirs.join_cluster("c")
        self.host = PartitionHost(1, self.dirs, self.clock, InlineOffload(), self.metrics, lambda image: {})
        state = PartitionImage((1,), leader=1, isr=(1,), revision=2)
        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        settings |= {name.replace("_", "."): value for name, value in config.items()}
        topics = {"t": TopicImage("t", UUID(int=1), settings, (state,) * partitions, 2)}
        self.image = ClusterImage("c", 2, topics=MappingProxyType(topics))
        self.host.admit(self.image)

    @property
    def partition(self) -> Partition:
        return self.host.find(TP)

    def fill(self, count: int = 2) -> None:
        """Some records in a segment that is sealed then."""
        for number in range(1, count + 1):
            self.partition.append(make_batch([Rec(b"k", b"%d" % number, NOW_MS)]), ACKS_ALL, NOW_MS)
        self.partition.log.roll(NOW_MS)
