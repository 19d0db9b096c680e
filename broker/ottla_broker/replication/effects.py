"""Effects: what a replica machine asks its shell to do. [P]

Effects are carried out in the order of their list, before the next event is given to the machine. They are values:
a test compares them, the shell executes them, and nothing else happens.

A leader's effects have two executors, so they come in two groups: first those of the partition (`OF_PARTITION`), then
those of the reporting follower's stream. So what is sent to the follower carries the new high watermark.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

# ---------------------------------------------------------------------- of a leader


class AdvanceHighWatermark(NamedTuple):
    """All below `offset` is committed: complete waiters, wake readers, notify followers (rule 12)."""

    offset: int


class ProposeIsr(NamedTuple):
    """Ask the metadata store for this in-sync set, and report the outcome (rules 5, 6 and 7)."""

    isr: tuple[int, ...]
    #: Eligible leader replicas: left an ISR below min.insync.replicas, and still have every committed record.
    elr: tuple[int, ...]


class SendFrom(NamedTuple):
    """Send the follower batches from `offset` on, as they come."""

    broker_id: int
    offset: int


class TellDivergence(NamedTuple):
    """The follower's log diverges: the leader's greatest epoch not above the follower's, and its end offset."""

    broker_id: int
    epoch: int
    end_offset: int


class TellStart(NamedTuple):
    """The leader's log starts after the follower's end: the follower must restart at `offset`."""

    broker_id: int
    offset: int


class Drop(NamedTuple):
    """Ignore the follower's message (rule 9); `reason` is for the log."""

    broker_id: int
    reason: str


#: Executed by the partition, before all others.
OF_PARTITION = (AdvanceHighWatermark, ProposeIsr)

LeaderEffect: TypeAlias = AdvanceHighWatermark | ProposeIsr | SendFrom | TellDivergence | TellStart | Drop

# ---------------------------------------------------------------------- of a follower


class Report(NamedTuple):
    """Report the position to the leader. With `wants`, also ask it to send from there."""

    wants: bool


class Append(NamedTuple):
    """Write the batches that came with the frame."""


class FollowWatermark(NamedTuple):
    """The leader's high watermark; the follower's is the same, but never above its log end."""

    high_watermark: int
    log_start: int


class TruncateTo(NamedTuple):
    """Truncate to `offset`: the leader's log differs from there on."""

    offset: int


class RestartAt(NamedTuple):
    """Delete everything and restart at `offset`: the leader no longer has the missing records."""

    offset: int


class Ignore(NamedTuple):
    """Ignore the frame: it has another epoch or another offset (rule 9)."""

    reason: str


FollowerEffect: TypeAlias = Report | Append | FollowWatermark | TruncateTo | RestartAt | Ignore
