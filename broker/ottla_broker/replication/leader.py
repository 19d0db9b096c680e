"""The leader machine of one partition and epoch: positions, in-sync set, high watermark. [P]

Created when an epoch begins and discarded with its positions when it ends. Driven by the partition, which gives
it events and executes the effects in order.

Theory of operation. A follower reports (last epoch, end offset, position) for every frame that it has written. A
position counts while its stream lives, its incarnation is the admitted one, and its log is a prefix
of the leader's.

* M1 (rule 6): the high watermark is the least position of the ISR and the proposed ISR together; a replica is
  in sync if it is in both.
* M2 (rule 6): at most one proposal is pending. It ends when the store has answered, or when an image newer than the one
  it was made from shows that its compare must fail.
* M3 (rule 7): with fewer than `min.insync.replicas` in sync the high watermark stands still. The same while the ELR
  is not empty: its replicas may be elected, and must not lack anything committed.
* M4 (rule 8): a follower enters at a position ≥ high watermark and ≥ the start of this epoch. One in the ISR that
  reports less than the high watermark has lost records: it leaves at once, and not to the ELR.
* M5 (rule 9): a position is unknown until it was reported in this epoch, on a stream that still lives, and agrees.
* M6: the high watermark never decreases.
* M7: replicas that the controller dropped stay on record until this leader has written. Nothing waits for that, so
  it is left to the next change, or to a tick (decision 9).
* M8: during a move, replicas that are to be removed leave the ISR together, and stay out, once every added replica is
  in it and enough are left without them (rule 22). A leader that is to be removed itself waits for its successor.
* M9: the low watermark is the least log start of the same replicas as in M1; DeleteRecords waits for it.

It must never assume that a proposal took effect because it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from ottla_broker.metadata.image import PartitionImage
from ottla_broker.replication.effects import (
    AdvanceHighWatermark,
    Drop,
    LeaderEffect,
    ProposeIsr,
    SendFrom,
    TellDivergence,
    TellStart,
)
from ottla_broker.replication.lineage import agrees
from ottla_broker.replication.watermark import UNKNOWN, committed
from ottla_core.errors import invariant

#: Replicas that one proposal adds: each is two compares of the transaction, and etcd takes three per branch.
_JOIN_MAX = 1


class Position(NamedTuple):
    """A follower's report about its replica."""

    broker_id: int
    incarnation: UUID
    leader_epoch: int
    last_epoch: int
    end_offset: int
    #: Its position: the log end, or the flushed end with flush.before.ack (rule 10).
    position: int
    #: It asks for batches from `end_offset` on.
    wants: bool = False


class OwnLog(NamedTuple):
    """The leader's log, as far as positions are compared with it."""

    start_offset: int
    end_offset: int
    lineage: Sequence[tuple[int, int]]


class _Follower:
    __slots__ = (
        "caught_up_at",
        "incarnation",
        "is_late",
        "leader_end",
        "log_start",
        "position",
        "reported_at",
    )

    def __init__(self, now: float) -> None:
        self.position = UNKNOWN
        #: Its log start, as it last reported on this stream.
        self.log_start = UNKNOWN
        self.incarnation: UUID | None = None
        #: When it last had everything that the leader had (Kafka's lastCaughtUpTimeMs).
        self.caught_up_at = now
        #: Time of the last report, and the leader's log end then.
        self.reported_at = now
        self.leader_end = 0
        self.is_late = False


class Leader:
    __slots__ = (
        "_admitted",
        "_followers",
        "_is_refused",
        "_lag_max_s",
        "_min_insync",
        "_positions",
        "broker_id",
        "epoch_start",
        "high_watermark",
        "image",
        "min_insync",
        "proposed",
    )

    def __init__(
        self,
        broker_id: int,
        image: PartitionImage,
        *,
        now: float,
        epoch_start: int,
        position: int,
        high_watermark: int,
        min_insync: int,
        lag_max_s: float,
        admitted: Mapping[int, UUID],
    ) -> None:
        self.broker_id = broker_id
        #: The newest state of the partition that the store has confirmed.
        self.image = image
        #: Where the log ended when this epoch began.
        self.epoch_start = epoch_start
        self.high_watermark = high_watermark
        self._min_insync = min_insync
        #: Effective `min.insync.replicas`.
        self.min_insync = image.needed_in_sync(min_insync)
        #: The pending proposal.
        self.proposed: ProposeIsr | None = None
        self._lag_max_s = lag_max_s
        #: Brokers that may be in an ISR: admitted, with this incarnation, and not stopping.
        self._admitted = admitted
        #: Positions of the replicas that count, including this broker's; the others are UNKNOWN.
        self._positions: dict[int, int] = {broker_id: position}
        self._followers = {b: _Follower(now) for b in image.replicas if b != broker_id}
        #: The store refused the last proposal, and nothing has changed since.
        self._is_refused = False

    # ------------------------------------------------------------------ what is asked of it

    @property
    def in_sync(self) -> int:
        """Number of in-sync replicas for acks=all (M1)."""
        if self.proposed is None:
            return len(self.image.isr)
        return sum(1 for broker_id in self.image.isr if broker_id in self.proposed.isr)

    @property
    def positions(self) -> Mapping[int, int]:
        return self._positions

    def low_watermark(self, own_start: int) -> int:
        """M9: no in-sync replica has records below it; UNKNOWN until all have reported their log start."""
        replicas = {*self.image.isr, *(self.proposed.isr if self.proposed is not None else ())}
        # A position that does not count (M5) makes the log start of the same stream not count.
        starts = [
            self._followers[b].log_start if b in self._followers and b in self._positions else UNKNOWN
            for b in replicas
            if b != self.broker_id
        ]
        return min(own_start, *starts) if starts else own_start

    def lags(self, log_end: int, now: float) -> Mapping[int, tuple[int, float]]:
        """Per follower: records that it lacks, and seconds since it had all (Kafka's lastCaughtUpTimeMs)."""
        return {
            broker_id: (0, 0.0)
            if f.position >= log_end
            else (log_end - max(0, f.position), max(0.0, now - f.caught_up_at))
            for broker_id, f in self._followers.items()
        }

    # ------------------------------------------------------------------ events

    def begun(self) -> list[LeaderEffect]:
        """The leadership begins; if this broker is alone in the ISR, everything is committed at once."""
        return [*self._advance(), *self._consider()]

    def appended(self, position: int) -> list[LeaderEffect]:
        """The leader's log has grown, or more of it is flushed."""
        positions, own = self._positions, self.broker_id
        was = positions[own]
        positions[own] = position
        # Only the replica that was last can have held the high watermark back.
        return self._advance() if was <= self.high_watermark else []

    def on_position(self, said: Position, log: OwnLog, now: float) -> list[LeaderEffect]:
        broker_id = said.broker_id
        follower = self._followers.get(broker_id)
        if follower is None:
            return [Drop(broker_id, "not a replica")]
        if said.leader_epoch != self.image.leader_epoch:
            return [Drop(broker_id, f"epoch {said.leader_epoch}, not {self.image.leader_epoch}")]
        if said.end_offset < log.start_offset:
            self._forget(broker_id, follower)
            return [TellStart(broker_id, log.start_offset)]
        parted = agrees(log.lineage, log.end_offset, said.last_epoch, said.end_offset)
        if parted is not None:
            self._forget(broker_id, follower)
            return [TellDivergence(broker_id, parted.epoch, parted.end_offset)]
        follower.incarnation = said.incarnation
        follower.position = min(said.position, said.end_offset)
        self._note_time(follower, said.end_offset, log.end_offset, now)
        self._count(broker_id, follower)
        effects = self._advance()
        if self.proposed is None and (
            broker_id not in self.image.isr or follower.position < self.high_watermark
        ):
            effects += self._consider()
        if said.wants:
            effects.append(SendFrom(broker_id, said.end_offset))
        return effects

    def on_log_start(self, said: Position) -> None:
        """A follower reports its log start in place of its position."""
        follower = self._followers.get(said.broker_id)
        if follower is not None and said.leader_epoch == self.image.leader_epoch:
            follower.log_start = said.position

    def on_stream_lost(self, broker_id: int, log_end: int, now: float) -> list[LeaderEffect]:
        """The follower's reports no longer count (M5)."""
        follower = self._followers.get(broker_id)
        if follower is not None:
            if follower.position >= log_end:
                follower.caught_up_at = now
            self._forget(broker_id, follower)
        return []

    def on_image(self, image: PartitionImage, now: float) -> list[LeaderEffect]:
        """The store shows a newer state of the partition, in the same epoch."""
        invariant(image.leader_epoch == self.image.leader_epoch, "a leadership lasts one epoch")
        if image.revision < self.image.revision:
            return []  # The reply to this leader's proposal was faster than the watch.
        if image.revision > self.image.revision:
            self.proposed = (
                None  # M2: this image contains the proposal, or the proposal can no longer succeed.
            )
            self._is_refused = False
        self.image = image
        self.min_insync = image.needed_in_sync(self._min_insync)
        for broker_id in image.replicas:
            if broker_id != self.broker_id and broker_id not in self._followers:
                self._followers[broker_id] = _Follower(now)
        for broker_id in [b for b in self._followers if b not in image.replicas]:
            del self._followers[broker_id]
            self._positions.pop(broker_id, None)
        return [*self._advance(), *self._consider()]

    def on_outcome(
        self, proposal: ProposeIsr, image: PartitionImage | None, now: float
    ) -> list[LeaderEffect]:
        """The store's answer to a proposal: the current state; None if only the image will show it.

        The watch may be faster than the answer; then another proposal is pending, and this answer says nothing about
        it.
        """
        if image is None or image.leader_epoch != self.image.leader_epoch:
            return []  # Another epoch has begun; the image is on its way, and this leadership ends with it.
        if image.revision > self.image.revision:
            return self.on_image(image, now)
        if proposal is self.proposed and image.revision == self.image.revision:
            self.proposed = None
            self._is_refused = True
            return self._advance()
        return []

    def on_members(self, admitted: Mapping[int, UUID], now: float) -> list[LeaderEffect]:
        """Other brokers came online, went offline, or were admitted again."""
        self._admitted = admitted
        self._is_refused = False
        for broker_id, follower in self._followers.items():
            self._count(broker_id, follower)
        return [*self._advance(), *self._consider()]

    def on_min_insync(self, min_insync: int) -> list[LeaderEffect]:
        self._min_insync = min_insync
        self.min_insync = self.image.needed_in_sync(min_insync)
        return [*self._advance(), *self._consider()]

    def tick(self, log_end: int, now: float) -> list[LeaderEffect]:
        """Called periodically: remove followers that have not caught up for `replica.lag.time.max.ms`."""
        self._is_refused = False
        for follower in self._followers.values():
            if follower.position >= log_end:
                follower.caught_up_at = now  # It already has everything, so it has nothing to report.
            follower.is_late = now - follower.caught_up_at > self._lag_max_s
        return self._consider(confirm=True)

    # ------------------------------------------------------------------ deciding

    def _note_time(self, follower: _Follower, end_offset: int, log_end: int, now: float) -> None:
        """As in Kafka: a follower that has everything up to the log end of its last report was caught up then."""
        if end_offset >= log_end:
            follower.caught_up_at = now
        elif end_offset >= follower.leader_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.reported_at)
        follower.leader_end, follower.reported_at = log_end, now
        follower.is_late = now - follower.caught_up_at > self._lag_max_s

    def _forget(self, broker_id: int, follower: _Follower) -> None:
        follower.position = follower.log_start = UNKNOWN
        self._positions.pop(broker_id, None)

    def _count(self, broker_id: int, follower: _Follower) -> None:
        """Rule 9: forget what another incarnation reported."""
        if follower.position != UNKNOWN and self._admitted.get(broker_id) == follower.incarnation:
            self._positions[broker_id] = follower.position
        else:
            self._positions.pop(broker_id, None)

    def _advance(self) -> list[LeaderEffect]:
        if self.image.elr:
            return []  # M3
        proposed = None if self.proposed is None else self.proposed.isr
        reached = committed(self.high_watermark, self._positions, self.image.isr, proposed, self.min_insync)
        if reached == self.high_watermark:
            return []
        self.high_watermark = reached
        return [AdvanceHighWatermark(reached)]

    def _consider(self, *, confirm: bool = False) -> list[LeaderEffect]:
        """Propose the in-sync set as it should be, unless it is that already or a proposal is pending.

        `confirm`: also if only the record of dropped replicas changes (M7).
        """
        if self.proposed is not None or self._is_refused:
            return []
        image, mark = self.image, self.high_watermark
        lost = [
            b for b in image.isr if UNKNOWN < self._positions.get(b, UNKNOWN) < mark and b in self._followers
        ]
        late = [b for b in image.isr if b not in lost and b in self._followers and self._followers[b].is_late]
        retiring = self._retiring((*lost, *late))
        joining = [
            b
            for b in image.replicas
            if b not in image.isr and b not in retiring and b in self._followers and self._is_ready(b)
        ]
        leaving = (*lost, *late, *retiring)
        isr = tuple(
            b
            for b in image.replicas
            if b == self.broker_id or (b not in leaving if b in image.isr else b in joining[:_JOIN_MAX])
        )
        enough = len(isr) >= self.min_insync
        # M3: a large enough ISR needs no ELR. Else replicas that leave it keep everything that will be committed.
        elr = (
            ()
            if enough
            else tuple(b for b in dict.fromkeys((*image.elr, *late)) if b not in isr and b not in lost)
        )
        if set(isr) == set(image.isr) and elr == image.elr and not (confirm and image.dropped):
            return []
        self.proposed = ProposeIsr(isr, elr)
        return [self.proposed]

    def _retiring(self, leaving: Sequence[int]) -> tuple[int, ...]:
        """M8."""
        image = self.image
        if not image.removing or not image.has_caught_up or self.broker_id in image.removing:
            return ()
        left = sum(1 for b in image.isr if b not in image.removing and b not in leaving)
        return image.removing if left >= self.min_insync else ()

    def _is_ready(self, broker_id: int) -> bool:
        """M4."""
        follower, position = self._followers[broker_id], self._positions.get(broker_id, UNKNOWN)
        return position >= self.high_watermark and position >= self.epoch_start and not follower.is_late
