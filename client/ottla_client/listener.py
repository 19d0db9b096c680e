"""Callbacks of the user for rebalances. [P]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ottla_core.ids import TopicPartition

#: Plain or async; a poll waits for it.
OnPartitions: TypeAlias = Callable[[Sequence[TopicPartition]], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class RebalanceListener:
    """Called during `poll`, in the task that polls, so never while you process the records of the last poll.

    * `on_assigned`: new partitions. Positions are looked up after it, so it may `seek`.
    * `on_revoked`: partitions that will be removed but are still ours: the last chance to commit.
    * `on_lost`: partitions that were removed without a revocation (for example after a session timeout): other
      members may read them already, and commits are refused. Defaults to `on_revoked`.
    """

    on_assigned: OnPartitions | None = None
    on_revoked: OnPartitions | None = None
    on_lost: OnPartitions | None = None
