"""One partition on this broker: its log, its leadership, its high watermark, and its waiters. [S]

Theory of operation. The log stores bytes; the partition knows which of them are committed. Three marks move up the log:

    start ≤ high watermark ≤ end          flushed ≤ end

* I1: consumers read only below the high watermark, of the leader or of a follower (rule 23).
* I2: the high watermark is the least position of the in-sync replicas, and stands still while fewer than
  `min.insync.replicas` are in sync (design rules 6 and 7). A position is the log end, or the flushed end where
  the topic has `flush.before.ack` (rule 10): such a topic serves and acknowledges nothing that a power
  loss could undo.
* I3: an acknowledgement waits for its leader epoch and fails with it (rule 11).
* I4: the (epoch, start offset) of a leadership is in the checkpoint before its first append (rule 3): the log sees
  to that (L3 there).
* I5: it leads or follows, never both: an elected broker stops following first (rule 10).

With other replicas a machine decides: `leading` decides what is committed and which replicas are in sync, `following`
decides what a leader's frame means for the log. While this broker is the only replica there is neither: the least
position is its own, and an append costs what it costs the log.

Each field has one owner, and no object writes another's. The partition owns the image, the high watermark and the
roles; `leading` and `following` own their machine, and pass on what it has decided: `confirm`, `commit_to`,
`follow_marks` and `note_cut`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from ottla_broker.log.log import AppendInfo, Log
from ottla_broker.log.origin import AppendOrigin
from ottla_broker.log.producers import StaleTransaction
from ottla_broker.log.validation import Accepted
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.metrics import Metrics
from ottla_broker.partition.following import Following
from ottla_broker.partition.group_commit import GroupCommit
from ottla_broker.partition.leading import Leading, Replication
from ottla_broker.partition.waiters import OffsetWaiters
from ottla_broker.replication import lineage
from ottla_broker.replication.follow_wire import partition_key
from ottla_broker.replication.watermark import followed
from ottla_broker.requests import Appended, EpochEnd, Maybe, ProducerIdentity
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import (
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OutOfOrderSequenceNumber,
    RequestError,
    UnknownLeaderEpoch,
)
from ottla_core.ids import NO_BROKER, NO_EPOCH, TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.disk import Buffer
from ottla_core.ports.offload import Offload
from ottla_core.records import control

ACKS_ALL = -1

_NOT_COMMITTED = "Written, but not committed within the request's time; it may still be."
_NOT_DELETED = (
    "Deleted on the leader, but not on every in-sync replica within the request's time; they will follow."
)


class Partition:
    __slots__ = (
        "_clock",
        "_commit",
        "_committed",
        "_deleted",
        "_flushed",
        "_log_probe",
        "_readers",
        "_replication",
        "epoch_start",
        "following",
        "high_watermark",
        "image",
        "is_leader",
        "key",
        "leading",
        "log",
        "topic_id",
        "topic_probe",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: UUID,
        log: Log,
        offload: Offload,
        clock: Clock,
        metrics: Metrics,
        replication: Replication | None = None,
        *,
        checkpointed: int | None = None,
    ) -> None:
        """`checkpointed` is the high watermark that an earlier incarnation has checkpointed."""
        self.tp = tp
        self.topic_id = topic_id
        #: The key of this partition in Follow frames.
        self.key = partition_key(topic_id, tp.partition)
        self.log = log
        self.topic_probe = metrics.topics.of(tp.topic)
        self._log_probe = metrics.log
        self._clock = clock
        self._replication = replication or Replication()
        #: The latest known metadata of this partition.
        self.image = PartitionImage(replicas=())
        self.is_leader = False
        #: Set while this broker leads other replicas, or follows a leader.
        self.leading: Leading | None = None
        self.following: Following | None = None
        #: Where the log ended when the present leadership began.
        self.epoch_start = log.end_offset
        #: First offset that is not committed; consumers stop there.
        self.high_watermark = max(log.start_offset, min(checkpointed or 0, log.end_offset))
        self._committed = OffsetWaiters(_NOT_COMMITTED)
        self._flushed = OffsetWaiters(_NOT_COMMITTED)
        #: Deletions that wait for the low watermark.
        self._deleted = OffsetWaiters(_NOT_DELETED)
        #: Called once and forgotten when something new can be read or the leadership ends.
        self._readers: dict[Callable[[], None], None] = {}
        self._commit = GroupCommit(log, offload, clock, metrics.log, self._on_flushed, self._on_broken)

    # ------------------------------------------------------------------ roles

    @property
    def leader_epoch(self) -> int:
        return self.image.leader_epoch

    def lead(self, image: PartitionImage) -> None:
        """Start or continue a leadership that the metadata store has confirmed."""
        began = not self.is_leader or image.leader_epoch != self.image.leader_epoch
        if began:
            self._end_roles(
                NotLeaderOrFollower("The partition's leadership changed while the request waited.")
            )
            self.is_leader = True
            self.epoch_start = self.log.end_offset
        if self.leading is not None:
            self.leading.on_image(image)
            return
        self.image = image
        if len(image.replicas) > 1:
            self.leading = Leading(self, image, self._replication, self._clock)
            self.leading.begin()
        else:
            self._advance_alone()

    def confirm(self, image: PartitionImage) -> None:
        """The metadata store has confirmed this state, in the same epoch. Called by `leading`."""
        self.image = image

    def resign(self, image: PartitionImage) -> None:
        """Another broker leads, or there is no leader: fail all waiters, so that clients ask the new leader."""
        following = self.following
        if following is not None and following.machine.leader_epoch == image.leader_epoch:
            self.image = image  # The same leader of the same epoch, with another ISR.
            return
        self._end_roles(NotLeaderOrFollower())
        self.image = image
        if image.leader != NO_BROKER and self.log.broken is None:
            # Remove epochs in which this broker led and wrote nothing: a leader's batches of older epochs could not
            # follow them.
            self.log.epochs.truncate_end(self.log.end_offset)
            self.following = Following(self, image.leader, image.leader_epoch)

    def begin_again(self) -> None:
        """Truncate before the damage and follow from there. Only `mending` may call this."""
        log = self.log
        log.drop_damaged(self.wall_ms())
        self.note_cut()
        self.following = Following(self, self.image.leader, self.image.leader_epoch)

    def close(self, error: RequestError) -> None:
        self._commit.stop()
        self._end_roles(error)

    def _end_roles(self, error: RequestError) -> None:
        """I5 and I3: end everything that belongs to the old epoch."""
        self.is_leader = False
        self.following = None
        leading, self.leading = self.leading, None
        if leading is not None:
            leading.end()
        self._release(error)

    @property
    def broker_id(self) -> int:
        """This broker."""
        return self._replication.broker_id

    def update_config(self, config: TopicConfig) -> None:
        self.log.update_config(config)
        if self.leading is not None:
            self.leading.on_config()

    def check_replica(self, expected_epoch: int = NO_EPOCH) -> None:
        """As `check_leader`, for consumers that may read from any replica (KIP-392): it leads, or follows a leader."""
        if not self.is_leader and self.following is not None and self.log.broken is None:
            self._check_epoch(expected_epoch)
        else:
            self.check_leader(expected_epoch)

    def check_leader(self, expected_epoch: int = NO_EPOCH) -> None:
        """Refuse a request if this broker does not lead, or if its leader epoch is stale or unknown (KIP-320)."""
        if self.log.broken is not None:
            raise KafkaStorageError(f"The log of {self.tp} is offline: {self.log.broken}")
        if not self.is_leader:
            raise NotLeaderOrFollower()
        self._check_epoch(expected_epoch)

    def _check_epoch(self, expected_epoch: int) -> None:
        if expected_epoch != NO_EPOCH and expected_epoch != self.image.leader_epoch:
            if expected_epoch < self.image.leader_epoch:
                raise FencedLeaderEpoch()
            raise UnknownLeaderEpoch()

    @property
    def needed_in_sync(self) -> int:
        return self.image.needed_in_sync(self.log.config.min_insync_replicas)

    # ------------------------------------------------------------------ writing

    def append(
        self,
        records: Buffer,
        acks: int,
        now_ms: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        accepted: list[Accepted] | None = None,
    ) -> Appended:
        """Append as the leader. The limits and rules for clients apply to batches of clients only.

        `accepted`: these records, checked by `Log.accepting`.
        """
        self.check_leader()
        leading = self.leading
        refusal: RequestError | None = None
        if acks == ACKS_ALL:
            in_sync = len(self.image.isr) if leading is None else leading.machine.in_sync
            needed = self.needed_in_sync
            if in_sync < needed:
                # The log raises it, unless it holds the batch: "nothing was written" would be wrong for a retry.
                refusal = NotEnoughReplicas(
                    f"{in_sync} in sync, min.insync.replicas asks for {needed}; nothing was written."
                )
        elif leading is not None:
            leading.check_work()
        epoch = self.image.leader_epoch
        try:
            info = self.log.append(
                records,
                leader_epoch=epoch,
                now_ms=now_ms,
                origin=origin,
                accepted=accepted,
                refusal=refusal,
            )
        except KafkaStorageError:
            self._on_broken()
            raise
        except (InvalidProducerEpoch, OutOfOrderSequenceNumber):
            # Rule 14: the error is final for a producer, but this broker may have been replaced as leader without
            # knowing it.
            if leading is not None:
                leading.check_work()
            raise
        if not info.duplicate:
            self.note_appended(info)
            if leading is not None:
                leading.appended(info.size_bytes)
            elif not self.log.config.flush_before_ack:
                self._advance_alone()
        return Appended(
            info.base_offset, info.last_offset, info.log_append_time_ms, self.log.start_offset, epoch
        )

    def abort_transaction(self, stale: StaleTransaction, now_ms: int) -> None:
        """Write an abort marker as a coordinator would. It reuses the last coordinator epoch, so it fences no
        coordinator."""
        producer = ProducerIdentity(stale.producer_id, stale.producer_epoch)
        self.end_transaction(producer, stale.coordinator_epoch, commits=False, now_ms=now_ms)

    def end_transaction(
        self, producer: ProducerIdentity, coordinator_epoch: int, *, commits: bool, now_ms: int
    ) -> Appended:
        """Write a transaction marker as the leader. Refused if it comes from a fenced coordinator (rule 21)."""
        self.check_leader()
        self.log.producers.check_marker(producer, coordinator_epoch)
        kind = control.MarkerType.COMMIT if commits else control.MarkerType.ABORT
        marker = control.build_marker(
            control.Marker(kind, coordinator_epoch),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            timestamp_ms=now_ms,
        )
        return self.append(marker, ACKS_ALL, now_ms, origin=AppendOrigin.COORDINATOR)

    def note_appended(self, info: AppendInfo) -> None:
        """Count it, and flush it if the topic's settings ask for that now."""
        count = info.last_offset - info.base_offset + 1
        topic, log = self.topic_probe, self._log_probe
        if self.is_leader:
            topic.records_in += count
            topic.batches_in += 1
            topic.bytes_in += info.size_bytes
        log.batches += 1
        log.bytes_appended += info.size_bytes
        self._commit.appended(count)

    def acknowledged(self, appended: Appended, acks: int, timeout_s: float) -> Awaitable[None] | None:
        """None if the append may be acknowledged now, else something to await."""
        next_offset = appended.last_offset + 1
        must_flush = self._commit.must_wait(appended.last_offset)
        must_commit = acks == ACKS_ALL and next_offset > self.high_watermark
        if not must_flush and not must_commit:
            return None
        if must_commit and len(self.image.isr) < self.needed_in_sync:
            return _fail(NotEnoughReplicasAfterAppend())
        # Both waits start now: progress before the caller awaits them must not be missed.
        waits = [
            waiters.reached(next_offset, timeout_s)
            for waiters, must in ((self._flushed, must_flush), (self._committed, must_commit))
            if must
        ]
        return waits[0] if len(waits) == 1 else _all(waits)

    @property
    def waiting(self) -> int:
        """Number of waiting acknowledgements."""
        return len(self._committed) + len(self._flushed) + len(self._deleted)

    def delete_records(self, offset: int, timeout_s: float) -> Maybe[int]:
        """Delete records before `offset` (-1: all committed ones); return the low watermark once it is that far.

        As in Kafka, the leader deletes at once. RequestTimedOut: an in-sync replica has not reported it in time.
        """
        self.check_leader()
        target = self.high_watermark if offset == -1 else offset
        self.log.advance_start(target, limit_offset=self.high_watermark)
        if self.leading is not None:
            self.leading.tell_followers()
        self._wake_readers()
        if self.low_watermark >= target:
            return self.low_watermark
        return self._low_watermark_after(self._deleted.reached(target, timeout_s))

    async def _low_watermark_after(self, reached: Awaitable[None]) -> int:
        await reached
        return self.low_watermark

    @property
    def low_watermark(self) -> int:
        """The least log start of the in-sync replicas, as far as the leader knows."""
        leading, start = self.leading, self.log.start_offset
        return start if leading is None else leading.machine.low_watermark(start)

    @property
    def is_deleting(self) -> bool:
        return len(self._deleted) > 0

    def deleted_to(self, low_watermark: int) -> None:
        """The low watermark may have moved: complete the deletions that waited for it."""
        self._deleted.advance(low_watermark)

    # ------------------------------------------------------------------ reading

    def stable_offset(self) -> int:
        """Last stable offset: the first offset of the oldest open transaction; read_committed consumers stop there."""
        return self.log.producers.last_stable_offset(self.high_watermark)

    def closest_replica(self, rack: str, offset: int) -> int:
        """The follower that a consumer in `rack` should read from; NO_BROKER to read here."""
        if not rack or self.leading is None or offset < self.log.start_offset:
            return NO_BROKER
        return self.leading.closest_replica(rack, offset)

    def when_readable(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when more can be read, the log was truncated, or the leader epoch ends."""
        self._readers[wake] = None

    def forget_reader(self, wake: Callable[[], None]) -> None:
        self._readers.pop(wake, None)

    def epoch_end(self, epoch: int, current_epoch: int) -> EpochEnd:
        self.check_leader(current_epoch)
        entries = lineage.leading(self.log.epochs.entries, self.image.leader_epoch, self.epoch_start)
        if epoch == NO_EPOCH or epoch > self.image.leader_epoch:
            return EpochEnd(NO_EPOCH, lineage.NO_OFFSET)
        return EpochEnd(*lineage.end_of(entries, epoch, self.log.end_offset))

    def check_latest(self) -> None:
        """Rule 13: a new leader does not know the end of what is committed before it reached its own epoch."""
        if self.leading is not None and self.high_watermark < self.epoch_start:
            raise OffsetNotAvailable()

    # ------------------------------------------------------------------ progress

    @property
    def position(self) -> int:
        """Position of this replica: everything below it is acknowledged (rule 10)."""
        log = self.log
        return log.recovery_point if log.config.flush_before_ack else log.end_offset

    def note_cut(self) -> None:
        """The log was truncated or restarted: move all marks back to its end at most."""
        log = self.log
        self.high_watermark = max(log.start_offset, min(self.high_watermark, log.end_offset))
        self._commit.cut(log.end_offset)
        self._wake_readers()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def commit_to(self, offset: int) -> None:
        """The high watermark has moved: complete waiters and wake readers."""
        self.high_watermark = offset
        self._committed.advance(offset)
        if self._readers:
            self._wake_readers()

    def follow_marks(self, high_watermark: int, log_start: int) -> None:
        """The leader's high watermark and log start: this replica's are the same, up to its log end."""
        log = self.log
        reached = followed(self.high_watermark, high_watermark, log.end_offset)
        if reached != self.high_watermark:
            self.commit_to(reached)
        if log_start > log.start_offset:
            log.advance_start(min(log_start, log.end_offset))
            self._wake_readers()

    def _advance_alone(self) -> None:
        """As the only replica."""
        if len(self.image.isr) < self.needed_in_sync:
            return  # I2
        log = self.log
        position = log.recovery_point if log.config.flush_before_ack else log.end_offset
        if position > self.high_watermark:
            self.commit_to(position)

    def _on_flushed(self) -> None:
        self._flushed.advance(self.log.recovery_point)
        if self.leading is not None:
            self.leading.appended()
        elif self.is_leader:
            self._advance_alone()
        elif self.following is not None:
            self.following.flushed()

    def _on_broken(self) -> None:
        self._release(KafkaStorageError(f"The log of {self.tp} is offline: {self.log.broken}"))

    def _release(self, error: RequestError) -> None:
        self._committed.fail(error)
        self._flushed.fail(error)
        self._deleted.fail(error)
        self._wake_readers()

    def _wake_readers(self) -> None:
        waiting, self._readers = self._readers, {}
        for wake in waiting:
            wake()


async def _all(waits: Sequence[Awaitable[None]]) -> None:
    for result in await asyncio.gather(*waits, return_exceptions=True):
        if result is not None:
            raise result


async def _fail(error: RequestError) -> None:
    raise error
