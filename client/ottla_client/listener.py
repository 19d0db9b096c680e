"""What a user hears of rebalances. [P]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ottla_core.ids import TopicPartition

#: Plain or async; a poll waits for it.
OnPartitions: TypeAlias = Callable[[Sequence[TopicPartition]], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class RebalanceListener:
    """Called during `poll`, in the task that polls, so never while you work on what the last poll gave.

    * `on_assigned`: partitions that came. Positions are looked up after it, so it may `seek`.
    * `on_revoked`: partitions that go, still ours: the last chance to commit.
    * `on_lost`: partitions that went without us being asked (we were silent for too long, say): others may read
      them already, and commits are refused. `on_revoked` is called instead if this one is not given.
    """

    on_assigned: OnPartitions | None = None
    on_revoked: OnPartitions | None = None
    on_lost: OnPartitions | None = None
