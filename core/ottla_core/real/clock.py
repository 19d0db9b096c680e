"""The machine's clock. [A]"""

from __future__ import annotations

import asyncio
import time


class RealClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    #: Not a method around it: requests take the time several times each.
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
