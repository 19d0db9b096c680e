"""Random numbers from the operating system, or from a seed for repeatable runs. [A]"""

from __future__ import annotations

import random
from uuid import UUID

_RESERVED_BELOW = 2  # Kafka reserves the all-zero UUID and the one after it.


class RealChance:
    def __init__(self, seed: int | None = None) -> None:
        self._random = random.SystemRandom() if seed is None else random.Random(seed)

    def uuid(self) -> UUID:
        while (made := UUID(int=self._random.getrandbits(128), version=4)).int < _RESERVED_BELOW:
            pass
        return made

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def fraction(self) -> float:
        return self._random.random()
