"""Producer ids, from blocks allocated in the metadata store. [S]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    def __init__(self, allocate_block: Callable[[], Awaitable[range]]) -> None:
        self._allocate_block = allocate_block
        self._left = iter(range(0))
        #: One allocation at a time: a burst of new producers must not use up a block each.
        self._allocating = asyncio.Lock()

    async def next(self) -> int:
        async with self._allocating:
            producer_id = next(self._left, None)
            if producer_id is None:
                self._left = iter(await self._allocate_block())
                producer_id = next(self._left)
        return producer_id
