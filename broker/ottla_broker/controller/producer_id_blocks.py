"""Allocates blocks of producer ids in the metadata store. [S]

Any broker may do so, controller or not: a compare protects it. A block whose reply was lost is simply never used.
"""

from __future__ import annotations

from ottla_broker.controller.changes import ATTEMPTS_MAX, PAUSE_FIRST_S
from ottla_broker.metadata.sections.producer_ids import PRODUCER_BLOCK
from ottla_broker.metadata.values import BadValue
from ottla_broker.metadata.watcher import Metadata
from ottla_core.errors import CoordinatorNotAvailable
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import Branch, MetadataStore, ModRevisionIs, Put, StoreError

PRODUCER_ID_BLOCK = 1000


class ProducerIdBlocks:
    def __init__(self, store: MetadataStore, clock: Clock, chance: Chance, metadata: Metadata) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._metadata = metadata

    async def allocate(self) -> range:
        """A block that no other broker has. CoordinatorNotAvailable if the store does not allow it."""
        problem = "other brokers took the ids first"
        for attempt in range(ATTEMPTS_MAX):
            if self._metadata.refusal is not None:
                raise CoordinatorNotAvailable(self._metadata.refusal)
            try:
                entry = await self._store.get(PRODUCER_BLOCK.key)
                first = 0 if entry is None else PRODUCER_BLOCK.decode(entry)
                compare = ModRevisionIs(PRODUCER_BLOCK.key, 0 if entry is None else entry.mod_revision)
                put = Put(PRODUCER_BLOCK.key, PRODUCER_BLOCK.encode(first + PRODUCER_ID_BLOCK))
                if (await self._store.transact((), [Branch((compare,), (put,))])).all_taken:
                    return range(first, first + PRODUCER_ID_BLOCK)
            except (StoreError, BadValue) as error:
                problem = str(error)
            await self._clock.sleep(PAUSE_FIRST_S * 2**attempt * self._chance.fraction())
        raise CoordinatorNotAvailable(f"No producer ids could be allocated in the metadata store: {problem}.")
