"""A led partition, as Follow streams see it. [S]

Streams are below partitions: they get objects with this interface, and know nothing else of them.
"""

from __future__ import annotations

from typing import Protocol

from ottla_broker.log.log import Log
from ottla_broker.replication.effects import LeaderEffect
from ottla_broker.replication.leader import Position
from ottla_broker.replication.outlet import Outlet


class LedRole(Protocol):
    """A leadership: receives the reports of followers."""

    def hear(self, said: Position, outlet: Outlet) -> list[LeaderEffect]: ...

    def hear_start(self, said: Position) -> None: ...

    def detach(self, broker_id: int, outlet: Outlet) -> None: ...

    def is_in_sync(self, broker_id: int) -> bool:
        """Whether the high watermark waits for this replica: it is in the ISR, or proposed for it."""

    @property
    def throttles_sending(self) -> bool:
        """Whether `leader.replication.throttled.replicas` names this leader."""

    def throttles_copying(self, broker_id: int) -> bool:
        """Whether `follower.replication.throttled.replicas` names this follower."""


class Led(Protocol):
    """A partition; `leading` is None while another broker leads it."""

    @property
    def key(self) -> bytes: ...

    @property
    def log(self) -> Log: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch that this broker knows."""

    @property
    def leading(self) -> LedRole | None: ...
