"""All partitions on this broker: reconciles logs and roles with the metadata image. [S]

The image says which replicas this broker has and which brokers lead them; the host opens, creates, leads, follows
and drops logs to match. It never elects a leader. A directory with another topic id than the image's is set aside,
never reused and never deleted on its own account (design rule 4); `LogDirs` does that.

`connect` provides what replication needs: streams to leaders, and a writer of
in-sync sets. Without it (a single host) nothing is replicated, and in-sync sets stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Protocol
from uuid import UUID

import structlog

from ottla_broker.log.dirs import LogDirs
from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_broker.metrics import Metrics
from ottla_broker.partition.leading import Replication
from ottla_broker.partition.mending import Mending, is_free
from ottla_broker.partition.partition import Partition
from ottla_broker.replication.effects import ProposeIsr
from ottla_broker.replication.follow_client import Followed
from ottla_broker.throttle_config import rates
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import KafkaStorageError, NotLeaderOrFollower, RequestError, UnknownTopicOrPartition
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload

_log = structlog.get_logger("ottla.partitions")

#: Lag is checked twice per replica.lag.time.max.ms, as in Kafka, but at least this often.
_TICK_S_MAX = 5.0
#: New partitions opened in one turn of the loop, at most: three small files each.
_HANDFUL = 16
#: Opening ends for this turn after so long: a busy disk takes milliseconds for each file, and the lease, Follow streams
#: and heartbeats wait meanwhile.
_OPENING_S = 0.003


class IsrWriter(Protocol):
    """See `controller.isr_writer`."""

    async def propose(
        self,
        topic_id: UUID,
        partition: int,
        *,
        expected: PartitionImage,
        isr: tuple[int, ...],
        elr: tuple[int, ...] = (),
    ) -> PartitionImage | None: ...


class Leaders(Protocol):
    """Follow streams to leaders: see `replication.follow_clients`."""

    def follow(self, followed: Followed, leader_id: int) -> None: ...

    def unfollow(self, followed: Followed, leader_id: int) -> None: ...

    def on_image(self, image: ClusterImage) -> None: ...


class PartitionHost:
    def __init__(
        self,
        broker_id: int,
        dirs: LogDirs,
        clock: Clock,
        offload: Offload,
        metrics: Metrics,
        broker_defaults: Callable[[ClusterImage], Mapping[str, str]],
        *,
        lag_max_s: float = 30.0,
        is_rack_aware: bool = False,
    ) -> None:
        self._broker_id = broker_id
        self._dirs = dirs
        self._clock = clock
        self._offload = offload
        self._metrics = metrics
        self._broker_defaults = broker_defaults
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_key: dict[bytes, Partition] = {}
        #: Replication state that all partitions share.
        self.replication = Replication(broker_id, lag_max_s, propose=self._propose)
        #: Whether leaders send consumers to followers in their rack (`replica.selector.class`).
        self._is_rack_aware = is_rack_aware
        self._leaders: Leaders | None = None
        self._isr_writer: IsrWriter | None = None
        self._proposing: dict[asyncio.Task[None], None] = {}
        self._image = ClusterImage(cluster_id="")
        #: New partitions whose log is not open yet, and whether a turn of the loop is scheduled for some of them.
        self._to_open: dict[TopicPartition, None] = {}
        self._opening = False
        #: Replicas of this broker whose log cannot be opened, by topic id and partition.
        self._unopened: dict[tuple[UUID, int], None] = {}
        self._mending = Mending(broker_id)
        #: Until the controller has admitted this incarnation, it leads nothing (design rule 1).
        self._admitted = False

    def connect(
        self,
        leaders: Leaders,
        isr_writer: IsrWriter,
        *,
        on_led: Callable[[bytes], None],
        is_confirmed: Callable[[], bool],
    ) -> None:
        """Connect partitions to streams and to the writer of in-sync sets."""
        self._leaders = leaders
        self._isr_writer = isr_writer
        self.replication.on_led = on_led
        self.replication.is_confirmed = is_confirmed

    # ------------------------------------------------------------------ finding

    def find_by_key(self, key: bytes) -> Partition | None:
        """The partition with this key (topic id and partition), as in Follow frames."""
        return self._by_key.get(key)

    def find(self, tp: TopicPartition) -> Partition:
        partition = self._partitions.get(tp)
        if partition is None:
            if self._image.partition(tp) is not None:
                raise NotLeaderOrFollower()
            raise UnknownTopicOrPartition(f"There is no partition {tp.partition} of topic {tp.topic!r}.")
        return partition

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    # ------------------------------------------------------------------ following the image

    def admit(self, image: ClusterImage) -> None:
        """The controller has admitted this incarnation: from now on, leaderships in the image apply to it."""
        self._admitted = True
        self._dirs.note_admitted()
        for partition in self:
            topic = image.topics.get(partition.tp.topic)
            if topic is None or topic.id != partition.topic_id:
                self._drop(partition)  # Deleted between the opening of the logs and now (rule 4).
            elif self._broker_id not in _replicas(topic, partition.tp.partition):
                self._move_away(topic, partition.tp.partition)
        self._remove_moved(image)
        self.on_image(ClusterImage(cluster_id=""), image)

    def _remove_moved(self, image: ClusterImage) -> None:
        """Remove logs of partitions that were moved to other brokers while this one was offline (rule 22)."""
        for tp, folder in self._dirs.folders():
            topic, state = image.topics.get(tp.topic), image.partition(tp)
            if topic is None or topic.id != folder.topic_id or state is None:
                continue  # Rule 4.
            if self._broker_id not in state.replicas:
                self._remove_log(tp, topic.id)

    def open_logs(self, image: ClusterImage) -> None:
        """Open the logs of this broker's replicas, before anything is served. Blocks."""
        defaults = self._broker_defaults(image)
        for topic in image.topics.values():
            config: TopicConfig | None = None
            for index, state in enumerate(topic.partitions):
                if self._broker_id in state.replicas:
                    config = config or TopicConfig.resolve(topic.config, defaults)
                    self._open(TopicPartition(topic.name, index), topic.id, config)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {tp: partition.high_watermark for tp, partition in self._partitions.items()}

    def on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Reconcile the hosted partitions with `new`. The cost depends on the changed topics, not on all of them."""
        self._image = new
        self._dirs.history = max(self._dirs.history, (new.recoveries, new.revision))
        if not self._admitted:
            return
        if old.brokers is not new.brokers or old.members is not new.members:
            self._on_members(new)
        for name, topic in old.topics.items():
            now = new.topics.get(name)
            if now is None or now.id != topic.id:
                self._drop_topic(topic)
        defaults = self._broker_defaults(new)
        defaults_changed = old.broker_configs is not new.broker_configs
        if defaults_changed:
            self.replication.throttles.set_rates(*rates(defaults), self._clock.monotonic())
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic and not defaults_changed:
                continue
            self._apply_topic(before, topic, defaults, defaults_changed)
        if self._to_open and not self._opening:
            self._open_some()

    def _apply_topic(
        self,
        before: TopicImage | None,
        topic: TopicImage,
        defaults: Mapping[str, str],
        defaults_changed: bool,
    ) -> None:
        same_topic = before is not None and before.id == topic.id
        config: TopicConfig | None = None
        if not same_topic or defaults_changed or (before is not None and before.config != topic.config):
            config = TopicConfig.resolve(topic.config, defaults)
        for index, state in enumerate(topic.partitions):
            if self._broker_id not in state.replicas:
                if same_topic and self._broker_id in _replicas(before, index):
                    self._move_away(topic, index)
                continue
            tp = TopicPartition(topic.name, index)
            partition = self._partitions.get(tp)
            if partition is None:
                self._to_open[tp] = None
                continue
            if config is not None:
                partition.update_config(config)
            if partition.image is not state:
                self._apply_state(partition, state)

    def _open_some(self) -> None:
        """Open a handful of new partitions, the rest in later turns of the loop.

        A thousand new folders at once would delay every client and the lease renewal. Each turn opens
        what the image says then, not what it said when the partition was queued.
        """
        defaults = self._broker_defaults(self._image)
        configs: dict[str, TopicConfig] = {}
        ends = self._clock.monotonic() + _OPENING_S
        for number, tp in enumerate(list(islice(self._to_open, _HANDFUL))):
            if number and self._clock.monotonic() >= ends:
                break
            del self._to_open[tp]
            topic, state = self._image.topics.get(tp.topic), self._image.partition(tp)
            gone = topic is None or state is None or self._broker_id not in state.replicas
            if gone or topic is None or state is None or tp in self._partitions:
                continue
            if tp.topic not in configs:
                configs[tp.topic] = TopicConfig.resolve(topic.config, defaults)
            partition = self._open(tp, topic.id, configs[tp.topic])
            if partition is not None:
                self._apply_state(partition, state)
        self._opening = bool(self._to_open)
        if self._opening:
            asyncio.get_running_loop().call_soon(self._open_some)
            return
        try:
            self._dirs.sync_created()
        except OSError as error:
            # It is offline now, with all in it.
            _log.error("log directory not synced", error=str(error))

    def _apply_state(self, partition: Partition, state: PartitionImage) -> None:
        if state.revision < partition.image.revision:
            return  # The reply to this broker's proposal was faster than the watch.
        former = partition.following
        if state.leader == self._broker_id:
            if former is not None and self._leaders is not None:
                self._leaders.unfollow(former, former.leader)  # Rule 10: first.
            partition.lead(state)
            return
        partition.resign(state)
        following = partition.following
        if following is not former and former is not None and self._leaders is not None:
            self._leaders.unfollow(former, former.leader)
        if following is not former:
            self._follow(partition)

    def _follow(self, partition: Partition) -> None:
        following = partition.following
        if following is not None and self._leaders is not None:
            self._leaders.follow(following, following.leader)

    def _on_members(self, image: ClusterImage) -> None:
        """The brokers that may be in an ISR changed, or addresses of leaders did."""
        admitted = {b.id: b.incarnation for b in image.admitted() if not b.stopping}
        if self._is_rack_aware:
            self.replication.racks = {
                b.id: b.rack for b in image.admitted() if b.rack is not None and not b.stopping
            }
        if admitted != self.replication.admitted:
            self.replication.admitted = admitted
            for partition in self:
                if partition.leading is not None:
                    partition.leading.on_members()
        if self._leaders is not None:
            self._leaders.on_image(image)

    # ------------------------------------------------------------------ in-sync sets

    async def run(self) -> None:
        """Check the lag of followers periodically, until cancelled."""
        try:
            while True:
                await self._clock.sleep(min(_TICK_S_MAX, self.replication.lag_max_s / 2))
                for partition in self:
                    if partition.leading is not None:
                        partition.leading.tick()
        finally:
            for task in self._proposing:
                task.cancel()

    def _propose(self, partition: Partition, wanted: ProposeIsr, expected: PartitionImage) -> None:
        writer = self._isr_writer
        if writer is None or partition.log.broken is not None:
            # Without an answer both sets count, which is safe. A leader without a usable log does not judge other
            # replicas.
            return
        self._metrics.replication.isr_changes += 1
        task = asyncio.get_running_loop().create_task(self._settle(writer, partition, wanted, expected))
        self._proposing[task] = None
        task.add_done_callback(self._on_settled)

    async def _settle(
        self, writer: IsrWriter, partition: Partition, wanted: ProposeIsr, expected: PartitionImage
    ) -> None:
        leading = partition.leading
        outcome = await writer.propose(
            partition.topic_id, partition.tp.partition, expected=expected, isr=wanted.isr, elr=wanted.elr
        )
        if leading is not None and partition.leading is leading:
            leading.on_outcome(wanted, outcome)

    def _on_settled(self, task: asyncio.Task[None]) -> None:
        self._proposing.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("in-sync set not proposed", error=repr(error))

    # ------------------------------------------------------------------ logs

    def give_up_broken(self) -> Mapping[UUID, tuple[int, ...]]:
        """Stop following with failed logs; return all partitions on this broker that cannot be served.

        A leader with such a log serves no requests, and leads until the image says otherwise: the cluster must be
        notified. Damaged logs continue as they are until other replicas have taken over, and are then repaired.
        """
        self._recreate_damaged()
        lost = set(self._unopened)
        for partition in self if self._dirs.offline else ():
            if partition.log.broken is not None:
                lost.add((partition.topic_id, partition.tp.partition))
                self._stop_following(partition)
        lost.update((p.topic_id, p.tp.partition) for p in self._damaged())
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, index in sorted(lost):
            by_topic.setdefault(topic_id, []).append(index)
        return {topic_id: tuple(indexes) for topic_id, indexes in by_topic.items()}

    def _damaged(self) -> list[Partition]:
        """Continue the repair of damaged logs; return the partitions to announce as offline."""
        mending, silent = self._mending, list(self._mending.silent)
        announced = mending.look(self, self._metrics.log.corruptions)
        silent += mending.silent
        for partition in mending.silent:
            self._stop_following(partition)
        for partition in mending.ready(self._image):
            try:
                mending.cut(partition)
            except KafkaStorageError as error:
                _log.error("damaged replica not truncated", partition=str(partition.tp), error=str(error))
        for partition in dict.fromkeys(silent):
            if partition not in mending.silent:
                self._follow(partition)
        return announced

    def _recreate_damaged(self) -> None:
        """Set aside logs that are too damaged to open, if no ISR or ELR counts on them, and create empty ones."""
        for topic in self._image.topics.values() if self._unopened and self._admitted else ():
            for index, state in enumerate(topic.partitions):
                tp = TopicPartition(topic.name, index)
                if (topic.id, index) in self._unopened and is_free(
                    self._broker_id, self._image, topic.id, index, state
                ):
                    try:
                        if self._dirs.set_aside_damaged(tp):
                            _log.error(
                                "damaged log set aside; copying it again from the leader", partition=str(tp)
                            )
                            self._to_open[tp] = None
                    except OSError as error:
                        _log.error("damaged log not set aside", partition=str(tp), error=str(error))
        if self._to_open and not self._opening:
            self._open_some()

    def _open(self, tp: TopicPartition, topic_id: UUID, config: TopicConfig) -> Partition | None:
        try:
            log = self._dirs.get_or_create(tp, topic_id, config, now_ms=self._clock.wall_ms())
            if config.flush_before_ack and log.recovery_point < log.end_offset:
                log.flush()  # After a crash: such a topic serves only durable records, so make them durable.
        except (OSError, KafkaStorageError) as error:
            # A failed directory takes only its own partitions offline.
            _log.error("partition not opened", partition=str(tp), error=str(error))
            self._unopened[topic_id, tp.partition] = None
            return None
        self._unopened.pop((topic_id, tp.partition), None)
        partition = Partition(
            tp,
            topic_id,
            log,
            self._offload,
            self._clock,
            self._metrics,
            self.replication,
            checkpointed=self._dirs.high_watermark(tp),
        )
        self._partitions[tp] = partition
        self._by_key[partition.key] = partition
        return partition

    def _move_away(self, topic: TopicImage, index: int) -> None:
        """Rule 22: other brokers hold the partition now, and this one's copy is no longer needed."""
        self._unopened.pop((topic.id, index), None)
        partition = self._partitions.get(TopicPartition(topic.name, index))
        if partition is not None:
            _log.info("partition moved to other brokers; removing the log", partition=str(partition.tp))
            self._drop(partition, NotLeaderOrFollower("The partition was moved to other brokers."))

    def _drop_topic(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            tp = TopicPartition(topic.name, index)
            self._unopened.pop((topic.id, index), None)
            partition = self._partitions.get(tp)
            if partition is not None:
                self._drop(partition)
        self._metrics.topics.forget(topic.name)

    def _drop(self, partition: Partition, reason: RequestError | None = None) -> None:
        tp = partition.tp
        del self._partitions[tp]
        self._mending.forget(partition)
        self._by_key.pop(partition.key, None)
        self._stop_following(partition)
        partition.close(reason or UnknownTopicOrPartition(f"Topic {tp.topic!r} was deleted."))
        self._remove_log(tp, partition.topic_id)

    def _remove_log(self, tp: TopicPartition, topic_id: UUID) -> None:
        try:
            self._dirs.remove(tp, topic_id, now_ms=self._clock.wall_ms())
        except OSError as error:
            # Its directory is offline now, and the log stays there.
            _log.error("log not removed", partition=str(tp), error=str(error))

    def _stop_following(self, partition: Partition) -> None:
        following = partition.following
        if following is not None and self._leaders is not None:
            self._leaders.unfollow(following, following.leader)

    def refresh_metrics(self) -> None:
        """Update the gauges that are counted on scrape."""
        probe, partitions = self._metrics.partitions, self._partitions.values()
        probe.partitions = len(partitions)
        probe.leaders = sum(p.is_leader for p in partitions)
        probe.offline = sum(p.log.broken is not None for p in partitions)
        probe.waiting_produces = sum(p.waiting for p in partitions)
        self._metrics.replication.under_replicated = sum(
            p.is_leader and p.image.is_under_replicated for p in partitions
        )

    def close(self) -> None:
        """Stop serving; the logs themselves are closed by their directories."""
        for partition in self:
            self._stop_following(partition)
            partition.close(NotLeaderOrFollower("The broker is stopping."))


def _replicas(topic: TopicImage | None, index: int) -> tuple[int, ...]:
    return () if topic is None or index >= len(topic.partitions) else topic.partitions[index].replicas
