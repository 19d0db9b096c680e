"""The follower machine of one partition: decides what a leader's frame means. [P]

Created when an epoch begins that another broker leads; discarded with it. Driven by the partition.

* F1 (rule 9): a frame of another epoch is ignored. So is one that does not begin at the log end: it was sent
  before the truncation, and the leader is asked to send from the log end.
* F2: only the leader's lineage truncates the log (KIP-101, KIP-279, KIP-320), never the follower's
  high watermark: a leader that lost nothing may still have the records above it.
  If the leader has deleted everything that would remain, the log restarts at the leader's start: what lies below it
  cannot be compared, and the leader's first batch may begin before it.
* F3: the high watermark is the leader's, up to the follower's log end.
* F4 (rule 10): the follower reports what it has written, or flushed with `flush.before.ack`; never more.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_broker.replication.effects import (
    Append,
    FollowerEffect,
    FollowWatermark,
    Ignore,
    Report,
    RestartAt,
    TruncateTo,
)
from ottla_broker.replication.lineage import EpochEnd, cut_for


class Follower:
    __slots__ = ("is_heard", "leader", "leader_epoch")

    def __init__(self, leader: int, leader_epoch: int) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        #: The leader has answered the last request with batches or marks; until then the request is repeated.
        self.is_heard = False

    def on_stream(self) -> list[FollowerEffect]:
        """A new stream to the leader is up; everything from earlier streams is forgotten."""
        self.is_heard = False
        return [Report(wants=True)]

    def on_silence(self) -> list[FollowerEffect]:
        """Ask again if there was no answer, for example because the leader did not know its epoch yet."""
        return [] if self.is_heard else [Report(wants=True)]

    def on_batches(
        self,
        leader_epoch: int,
        from_offset: int,
        size: int,
        high_watermark: int,
        log_start: int,
        end_offset: int,
    ) -> list[FollowerEffect]:
        if leader_epoch != self.leader_epoch:
            return [Ignore(f"epoch {leader_epoch}, not {self.leader_epoch}")]
        self.is_heard = True
        watermark = FollowWatermark(high_watermark, log_start)
        if not size:
            return [watermark]
        if from_offset != end_offset:
            return [
                Ignore(f"batches from {from_offset}, but the log ends at {end_offset}"),
                Report(wants=True),
            ]
        return [Append(), watermark, Report(wants=False)]

    def on_divergence(
        self,
        leader_epoch: int,
        leader_end: EpochEnd,
        log_start: int,
        lineage: Sequence[tuple[int, int]],
        end_offset: int,
    ) -> list[FollowerEffect]:
        if leader_epoch != self.leader_epoch:
            return [Ignore(f"epoch {leader_epoch}, not {self.leader_epoch}")]
        self.is_heard = False
        cut = cut_for(lineage, leader_end, end_offset)
        restarts = log_start > 0 and cut <= log_start
        return [RestartAt(log_start) if restarts else TruncateTo(cut), Report(wants=True)]

    def on_start(self, leader_epoch: int, log_start: int, end_offset: int) -> list[FollowerEffect]:
        """The leader's log starts after the follower's log end."""
        if leader_epoch != self.leader_epoch:
            return [Ignore(f"epoch {leader_epoch}, not {self.leader_epoch}")]
        self.is_heard = False
        if log_start <= end_offset:
            return [Ignore(f"the log already ends at {end_offset}"), Report(wants=True)]
        return [RestartAt(log_start), Report(wants=True)]
