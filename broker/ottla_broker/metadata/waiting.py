"""Waits for an event or a timeout, whichever comes first, on the injected clock. [S]"""

from __future__ import annotations

import asyncio

from ottla_core.ports.clock import Clock


async def wait_for_sign(sign: asyncio.Event, clock: Clock, seconds: float) -> bool:
    """Wait until `sign` is set (True) or the timeout has passed (False)."""
    if sign.is_set():
        return True
    if seconds <= 0:
        return False
    waiting = {asyncio.ensure_future(sign.wait()), asyncio.ensure_future(clock.sleep(seconds))}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    return sign.is_set()
