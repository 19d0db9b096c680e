"""Metrics of partitions and of the cluster, under the names that kafka_exporter and Strimzi's dashboards use. [S]

Leaders report their partitions; the controller reports what concerns the whole cluster and partitions without a
leader. So a sum over all brokers counts each partition once. The number of series is bounded: partitions in
trouble come first, and the rest up to `metrics.partitions.max`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla_broker.exposed import Family, Sample
from ottla_broker.metadata.image import ClusterImage, PartitionImage
from ottla_broker.metrics import Metrics
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import Partition
from ottla_broker.steps import Slice
from ottla_core.ids import NO_BROKER
from ottla_core.ports.clock import Clock

#: Partitions that are looked at in one slice: some microseconds each.
_ROWS_PER_STEP = 128
#: Partitions of the cluster of which only the leader is looked at in one slice.
_STATES_PER_STEP = 4096


class _Row(NamedTuple):
    """One partition, as one scrape shows it. Offsets are None where there is no leader."""

    topic: str
    partition: int
    image: PartitionImage
    needed: int
    start: int | None = None
    end: int | None = None

    @property
    def trouble(self) -> int:
        """0 is the worst."""
        if self.image.leader == NO_BROKER:
            return 0
        if len(self.image.isr) < self.needed:
            return 1
        return 2 if len(self.image.isr) < len(self.image.replicas) else 3


@dataclass(slots=True)
class _Survey:
    """What the controller reports of all partitions."""

    leaderless: list[_Row] = field(default_factory=list)
    #: Moves that have not begun.
    waiting: int = 0
    #: Partitions that are copied, by the broker that they move to.
    copies: Counter[int] = field(default_factory=Counter)


class PartitionMetrics:
    def __init__(
        self,
        host: PartitionHost,
        clock: Clock,
        metrics: Metrics,
        image: Callable[[], ClusterImage],
        is_controller: Callable[[], bool],
        unclean_elections: Callable[[], int],
        *,
        partitions_max: int,
    ) -> None:
        self._host = host
        self._clock = clock
        self._metrics = metrics
        self._image = image
        self._is_controller = is_controller
        self._max = partitions_max
        self._unclean_elections = unclean_elections

    def families(self) -> Iterator[Family | None]:
        led: list[Partition] = []
        rows: list[_Row] = []
        done = Slice(_ROWS_PER_STEP)
        for partition in list(self._host):
            if done.over():
                yield None
            if partition.is_leader:
                led.append(partition)
                rows.append(_row(partition))
        yield from self._of_broker(rows)
        yield from self._followers(led)
        controls = self._is_controller()
        # On every broker: a counter that appears with its first count has not increased for Prometheus.
        yield Family(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "counter",
            "Leaders elected from outside of ISR and ELR while this broker was controller.",
            [Sample("", (), self._unclean_elections())],
        )
        if controls:
            found = yield from self._survey()
            yield from self._of_cluster(found)
            rows += found.leaderless
        rows.sort(key=lambda row: row.trouble)
        yield _gauge(
            "ottla_metrics_partitions_omitted",
            "Partitions without metrics of their own, beyond metrics.partitions.max.",
            [((), max(0, len(rows) - self._max))],
        )
        yield from _per_partition(rows[: self._max])

    def _of_broker(self, rows: list[_Row]) -> Iterator[Family]:
        probe = self._metrics.partitions
        for name, doc, value in (
            ("replicamanager_partitioncount", "Partitions on this broker.", probe.partitions),
            ("replicamanager_leadercount", "Partitions that this broker leads.", len(rows)),
            (
                "replicamanager_underreplicatedpartitions",
                "Partitions led by this broker with fewer in-sync replicas than replicas.",
                sum(row.trouble < 3 for row in rows),
            ),
            (
                "replicamanager_reassigningpartitions",
                "Partitions led by this broker that move to other replicas.",
                sum(row.image.is_moving for row in rows),
            ),
            (
                "replicamanager_underminisrpartitioncount",
                "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas.",
                sum(row.trouble < 2 for row in rows),
            ),
        ):
            yield _gauge(f"kafka_server_{name}", doc, [((), value)])
        yield _gauge(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log directories taken offline after an error.",
            [((), self._metrics.log.dirs_offline)],
        )
        yield _gauge(
            "kafka_controller_kafkacontroller_activecontrollercount",
            "1 on the controller while its lease in etcd is alive, else 0.",
            [((), self._metrics.metadata.is_controller)],
        )

    def _followers(self, led: list[Partition]) -> Iterator[Family | None]:
        """The worst lag of each follower, over all partitions that this broker leads."""
        now = self._clock.monotonic()
        records: dict[int, int] = {}
        seconds: dict[int, float] = {}
        left: dict[int, int] = {}
        done = Slice(_ROWS_PER_STEP)
        for partition in led:
            if done.over():
                yield None
            if partition.leading is not None:
                copying = partition.image.copying
                for broker, (behind, late_s) in partition.leading.lags(now).items():
                    more = _bytes_of(partition, behind) if broker in copying else 0
                    left[broker] = left.get(broker, 0) + more
                    records[broker] = max(records.get(broker, 0), behind)
                    seconds[broker] = max(seconds.get(broker, 0.0), late_s)
        yield _gauge(
            "ottla_replication_follower_lag_records",
            "Records that a follower lacks, in the partition where it is furthest behind.",
            [((("follower", str(broker)),), value) for broker, value in sorted(records.items())],
        )
        yield _gauge(
            "ottla_replication_follower_lag_seconds",
            "Time since a follower last had all records, in the partition where that is longest ago.",
            [((("follower", str(broker)),), round(value, 3)) for broker, value in sorted(seconds.items())],
        )
        yield _gauge(
            "ottla_moves_left_bytes",
            "Bytes of this leader that a broker has still to copy because partitions move to it; an estimate.",
            [((("follower", str(broker)),), value) for broker, value in sorted(left.items())],
        )
        yield _gauge(
            "kafka_server_replicafetchermanager_maxlag",
            "Records that the slowest follower of this broker lacks.",
            [((("clientId", "Replica"),), max(records.values(), default=0))],
        )

    def _survey(self) -> Generator[None, None, _Survey]:
        found = _Survey()
        done = Slice(_STATES_PER_STEP)
        for name, topic in self._image().topics.items():
            if done.over(1 + len(topic.partitions)):
                yield None
            for number, state in enumerate(topic.partitions):
                if state.leader == NO_BROKER:
                    found.leaderless.append(_Row(name, number, state, needed=1))
                if state.planned:
                    found.waiting += 1
                if state.adding:
                    found.copies.update(state.copying)
        return found

    def _of_cluster(self, found: _Survey) -> Iterator[Family]:
        image = self._image()
        yield _gauge(
            "kafka_brokers", "Online brokers; reported by the controller.", [((), len(image.brokers))]
        )
        yield _gauge(
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "Partitions without a leader; reported by the controller.",
            [((), len(found.leaderless))],
        )
        yield _gauge(
            "kafka_controller_kafkacontroller_globaltopiccount",
            "Topics of the cluster; reported by the controller.",
            [((), len(image.topics))],
        )
        yield _gauge(
            "kafka_controller_kafkacontroller_globalpartitioncount",
            "Partitions of the cluster; reported by the controller.",
            [((), sum(len(topic.partitions) for topic in image.topics.values()))],
        )
        yield _gauge(
            "ottla_moves_waiting",
            "Moves that wait until their brokers copy fewer partitions; reported by the controller.",
            [((), found.waiting)],
        )
        yield _gauge(
            "ottla_moves_copies",
            "Partitions that a broker copies because they move to it; reported by the controller.",
            [((("broker", str(broker)),), found.copies[broker]) for broker in sorted(image.members)],
        )
        topics = list(image.topics.items())[: self._max]
        yield _gauge(
            "kafka_topic_partitions",
            "Partitions of a topic; reported by the controller.",
            [((("topic", name),), len(topic.partitions)) for name, topic in topics],
        )


def _bytes_of(partition: Partition, records: int) -> int:
    """The size of the last records, as if all were of one size."""
    log = partition.log
    count = log.end_offset - log.start_offset
    return log.size_bytes * min(records, count) // count if count else 0


def _row(partition: Partition) -> _Row:
    return _Row(
        partition.tp.topic,
        partition.tp.partition,
        partition.image,
        partition.needed_in_sync,
        partition.log.start_offset,
        partition.high_watermark,
    )


def _per_partition(rows: list[_Row]) -> Iterator[Family]:
    def family(name: str, doc: str, value: Callable[[_Row], float | None]) -> Family:
        values = ((row, value(row)) for row in rows)
        labelled = (
            ((("topic", row.topic), ("partition", str(row.partition))), found)
            for row, found in values
            if found is not None
        )
        return _gauge(name, doc, labelled)

    yield family("kafka_topic_partition_current_offset", "High watermark of a partition.", lambda r: r.end)
    yield family("kafka_topic_partition_oldest_offset", "First offset of a partition.", lambda r: r.start)
    yield family("kafka_topic_partition_leader", "Broker id of the leader, or -1.", lambda r: r.image.leader)
    yield family(
        "kafka_topic_partition_leader_is_preferred",
        "1 if the first replica leads.",
        lambda r: int(r.image.leader == r.image.replicas[0]),
    )
    yield family(
        "kafka_topic_partition_replicas", "Replicas of a partition.", lambda r: len(r.image.replicas)
    )
    yield family(
        "kafka_cluster_partition_replicascount",
        "Replicas of a partition, under the name of Kafka's own metric.",
        lambda r: len(r.image.replicas),
    )
    yield family(
        "kafka_topic_partition_in_sync_replica",
        "In-sync replicas of a partition.",
        lambda r: len(r.image.isr) if r.image.leader != NO_BROKER else 0,
    )
    yield family(
        "kafka_topic_partition_under_replicated_partition",
        "1 if a partition has fewer in-sync replicas than replicas.",
        lambda r: int(r.trouble < 3),
    )
    yield family(
        "kafka_cluster_partition_underminisr",
        "1 if a partition has fewer in-sync replicas than min.insync.replicas.",
        lambda r: int(r.trouble < 2),
    )
    yield family(
        "kafka_cluster_partition_atminisr",
        "1 if a partition has exactly min.insync.replicas in-sync replicas, and more replicas.",
        lambda r: int(len(r.image.isr) == r.needed < len(r.image.replicas)),
    )


def _gauge(name: str, doc: str, values: Iterable[tuple[tuple[tuple[str, str], ...], float]]) -> Family:
    return Family(name, "gauge", doc, (Sample("", labels, value) for labels, value in values))
