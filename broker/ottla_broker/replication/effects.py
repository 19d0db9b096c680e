"""What a replica may ask its shell to do. [P]

Effects are carried out in the order of their list, before the next event is given to the machine. They are values:
a test compares them, the shell executes them, and nothing else happens.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

# ---------------------------------------------------------------------- of a leader


class AdvanceHighWatermark(NamedTuple):
    """All below `offset` is committed: release who waits, show it to readers, tell followers (rule 12)."""

    offset: int


class ProposeIsr(NamedTuple):
    """Ask the metadata store for this in-sync set, and report the outcome (rules 5, 6 and 7)."""

    isr: tuple[int, ...]
    #: Who left an in-sync set that is too small, and still has every committed record.
    elr: tuple[int, ...]


class SendFrom(NamedTuple):
    """Send the follower batches from `offset` on, as they come."""

    broker_id: int
    offset: int


class TellDivergence(NamedTuple):
    """The follower's log is not a beginning of ours: our last epoch not above its own, and where that ends."""

    broker_id: int
    epoch: int
    end_offset: int


class TellStart(NamedTuple):
    """Our log begins behind the follower's end: it has to begin anew at `offset`."""

    broker_id: int
    offset: int


class Drop(NamedTuple):
    """What the follower said does not count here (rule 9); `reason` is for the log."""

    broker_id: int
    reason: str


LeaderEffect: TypeAlias = AdvanceHighWatermark | ProposeIsr | SendFrom | TellDivergence | TellStart | Drop

# ---------------------------------------------------------------------- of a follower


class Report(NamedTuple):
    """Tell the leader our position. With `wants`, also that it should send from there."""

    wants: bool


class Append(NamedTuple):
    """Write the batches that came with the frame."""


class FollowWatermark(NamedTuple):
    """The leader's high watermark; ours is that, but never above our end."""

    high_watermark: int
    log_start: int


class TruncateTo(NamedTuple):
    """Drop everything from `offset` on: the leader's log has something else there."""

    offset: int


class RestartAt(NamedTuple):
    """Drop everything, begin at `offset`: the leader no longer has what we lack."""

    offset: int


class Ignore(NamedTuple):
    """The frame is about another epoch or another place of the log (rule 9)."""

    reason: str


FollowerEffect: TypeAlias = Report | Append | FollowWatermark | TruncateTo | RestartAt | Ignore
