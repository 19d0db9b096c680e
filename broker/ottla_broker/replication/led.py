"""A led partition, as far as the streams that carry it look at it. [S]

Streams are below partitions: they are handed what satisfies this, and know nothing else of them.
"""

from __future__ import annotations

from typing import Protocol

from ottla_broker.log.log import Log
from ottla_broker.replication.effects import LeaderEffect
from ottla_broker.replication.leader import Position
from ottla_broker.replication.outlet import Outlet


class LedRole(Protocol):
    """A leadership: hears what followers say."""

    def hear(self, said: Position, outlet: Outlet) -> list[LeaderEffect]: ...

    def detach(self, broker_id: int, outlet: Outlet) -> None: ...

    def is_in_sync(self, broker_id: int) -> bool: ...


class Led(Protocol):
    """A partition; `leading` is None while another leads it."""

    @property
    def key(self) -> bytes: ...

    @property
    def log(self) -> Log: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def leader_epoch(self) -> int:
        """The newest epoch that this broker knows of."""

    @property
    def leading(self) -> LedRole | None: ...
