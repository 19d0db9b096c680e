"""One leadership of one partition: who has what, who is in sync, how far it is committed. [P]

Made when an epoch begins and thrown away when it ends: positions die with it. Driven by the partition, which gives
it events and carries out the effects in order.

Theory of operation. A follower reports (last epoch, end offset, position) for every frame that it has written. A
position counts while its stream lives, its incarnation is the one the cluster has admitted, and its log is a
beginning of ours.

* M1 (rule 6): the high watermark is the least position of the ISR and the proposed ISR together; in sync is
  who is in both.
* M2 (rule 6): one proposal is under way. It ends when the store has answered, or when an image newer than the one
  it was made from shows that its compare must fail.
* M3 (rule 7): with fewer than `min.insync.replicas` in sync the high watermark stands still. The same while the ELR
  is not empty: who is in it may be elected, and must not lack anything committed.
* M4 (rule 8): a follower enters at a position ≥ high watermark and ≥ the start of this epoch. One in the ISR that
  reports less than the high watermark has lost something: it leaves at once, and not to the ELR.
* M5 (rule 9): a position is unknown until it was reported in this epoch, on a stream that still lives, and agrees.
* M6: the high watermark never goes back.
* M7: whom the controller dropped stays on record until we write something. Nothing waits for that, so it is left to
  the next change, or to a tick (decision 9).

It must never assume that a proposal took effect because it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from ottla_broker.controller.image import PartitionImage
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

#: Who enters in one proposal: each is two compares of the transaction, and etcd takes three per branch.
_JOIN_MAX = 1


class Position(NamedTuple):
    """What a follower says about its copy."""

    broker_id: int
    incarnation: UUID
    leader_epoch: int
    last_epoch: int
    end_offset: int
    #: What it vouches for: the end, or where the topic asks for it, the flushed end (rule 10).
    position: int
    #: It asks to be sent what follows, from `end_offset` on.
    wants: bool = False


class OwnLog(NamedTuple):
    """Our log, as far as a position is compared with it."""

    start_offset: int
    end_offset: int
    lineage: Sequence[tuple[int, int]]


class _Follower:
    __slots__ = ("caught_up_at", "incarnation", "is_late", "leader_end", "position", "reported_at")

    def __init__(self, now: float) -> None:
        self.position = UNKNOWN
        self.incarnation: UUID | None = None
        #: When it last had all that we had (Kafka's lastCaughtUpTimeMs).
        self.caught_up_at = now
        #: Of the last report: when it came, and where our log ended then.
        self.reported_at = now
        self.leader_end = 0
        self.is_late = False


class Leader:
    __slots__ = (
        "_admitted",
        "_followers",
        "_is_refused",
        "_lag_max_s",
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
        self.min_insync = min_insync
        #: The proposal whose outcome is not known.
        self.proposed: ProposeIsr | None = None
        self._lag_max_s = lag_max_s
        #: Brokers that may be in an ISR: admitted, with this incarnation, and not stopping.
        self._admitted = admitted
        #: Of the replicas, ours included, those that count; the others are UNKNOWN.
        self._positions: dict[int, int] = {broker_id: position}
        self._followers = {b: _Follower(now) for b in image.replicas if b != broker_id}
        #: The store would not have our last proposal, and nothing has changed since.
        self._is_refused = False

    # ------------------------------------------------------------------ what is asked of it

    @property
    def in_sync(self) -> int:
        """How many replicas acks=all can count on (M1)."""
        if self.proposed is None:
            return len(self.image.isr)
        return sum(1 for broker_id in self.image.isr if broker_id in self.proposed.isr)

    @property
    def positions(self) -> Mapping[int, int]:
        return self._positions

    # ------------------------------------------------------------------ events

    def begun(self) -> list[LeaderEffect]:
        """The leadership begins; alone in the ISR it is committed at once."""
        return [*self._advance(), *self._consider()]

    def appended(self, position: int) -> list[LeaderEffect]:
        """Our own copy has grown, or more of it is flushed."""
        positions, own = self._positions, self.broker_id
        was = positions[own]
        positions[own] = position
        # Only the last one can have held the others back.
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
        effects: list[LeaderEffect] = [SendFrom(broker_id, said.end_offset)] if said.wants else []
        effects += self._advance()
        if self.proposed is None and (
            broker_id not in self.image.isr or follower.position < self.high_watermark
        ):
            effects += self._consider()
        return effects

    def on_stream_lost(self, broker_id: int, log_end: int, now: float) -> list[LeaderEffect]:
        """Nothing the follower said counts any more (M5)."""
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
            return []  # The answer to our own proposal was faster than the watch.
        if image.revision > self.image.revision:
            self.proposed = None  # M2: whatever became of it is in this image, or can no longer be.
            self._is_refused = False
        self.image = image
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
        """What the store has made of a proposal: the state that holds now; None if only the image will tell.

        The watch may be faster than the answer, and then another proposal is under way, of which this says nothing.
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
        """Other brokers came, went, or were admitted anew."""
        self._admitted = admitted
        self._is_refused = False
        for broker_id, follower in self._followers.items():
            self._count(broker_id, follower)
        return [*self._advance(), *self._consider()]

    def on_min_insync(self, min_insync: int) -> list[LeaderEffect]:
        self.min_insync = min_insync
        return [*self._advance(), *self._consider()]

    def tick(self, log_end: int, now: float) -> list[LeaderEffect]:
        """Now and then: who has not caught up for `replica.lag.time.max.ms` is late."""
        self._is_refused = False
        for follower in self._followers.values():
            if follower.position >= log_end:
                follower.caught_up_at = now  # Nothing was asked of it, so it has nothing to say.
            follower.is_late = now - follower.caught_up_at > self._lag_max_s
        return self._consider(confirm=True)

    # ------------------------------------------------------------------ deciding

    def _note_time(self, follower: _Follower, end_offset: int, log_end: int, now: float) -> None:
        """As Kafka does: having all that we had at its last report means it was caught up then."""
        if end_offset >= log_end:
            follower.caught_up_at = now
        elif end_offset >= follower.leader_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.reported_at)
        follower.leader_end, follower.reported_at = log_end, now
        follower.is_late = now - follower.caught_up_at > self._lag_max_s

    def _forget(self, broker_id: int, follower: _Follower) -> None:
        follower.position = UNKNOWN
        self._positions.pop(broker_id, None)

    def _count(self, broker_id: int, follower: _Follower) -> None:
        """Rule 9: what another incarnation said is nothing."""
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
        """Propose the in-sync set as it should be, if it is not and nothing is under way.

        `confirm`: also if only a record of the dropped is to go (M7).
        """
        if self.proposed is not None or self._is_refused:
            return []
        image, mark = self.image, self.high_watermark
        lost = [
            b for b in image.isr if UNKNOWN < self._positions.get(b, UNKNOWN) < mark and b in self._followers
        ]
        late = [b for b in image.isr if b not in lost and b in self._followers and self._followers[b].is_late]
        joining = [
            b for b in image.replicas if b not in image.isr and b in self._followers and self._is_ready(b)
        ]
        leaving = (*lost, *late)
        isr = tuple(
            b
            for b in image.replicas
            if b == self.broker_id or (b not in leaving if b in image.isr else b in joining[:_JOIN_MAX])
        )
        enough = len(isr) >= self.min_insync
        # M3: nobody is needed besides a big enough ISR. Else who leaves it keeps all that will be committed.
        elr = (
            ()
            if enough
            else tuple(b for b in dict.fromkeys((*image.elr, *late)) if b not in isr and b not in lost)
        )
        if set(isr) == set(image.isr) and elr == image.elr and not (confirm and image.dropped):
            return []
        self.proposed = ProposeIsr(isr, elr)
        return [self.proposed]

    def _is_ready(self, broker_id: int) -> bool:
        """M4."""
        follower, position = self._followers[broker_id], self._positions.get(broker_id, UNKNOWN)
        return position >= self.high_watermark and position >= self.epoch_start and not follower.is_late
