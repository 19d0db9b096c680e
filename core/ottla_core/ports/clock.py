"""Time, passed in. Machines take `now` as an argument; only shells hold a `Clock`."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970: record timestamps and retention. May jump."""

    def monotonic(self) -> float:
        """Seconds that never go back: deadlines and leases."""

    async def sleep(self, seconds: float) -> None:
        """Wait. The only place in the code base that sleeps."""
