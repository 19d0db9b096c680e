"""Keeps the image: one paged read, then one watch; reads again when the watch breaks. [S]

Each broker has one. `load` (or the first turn of `run`) reads everything, `run` follows for ever. A
compacted, silent or broken watch is not resumed but read again and compared (design rule 18): only a new
read shows whether the store went back to an older backup. If it did, or belongs to another cluster, the
image stays as it is, `refusal` says why, and `on_refusal` is called; the broker then stops changing
anything. It stays so until the process ends: even if the store's revision grows past this broker's later, because
a broker that had seen less continues from the backup, its contents are still wrong. A store that was made
usable again (`recovery.py`) is accepted by a starting process, never by one that has led in the lost history.

Subscribers are called on the loop, in order, with the old and the new image; what did not change is the
same object in both. It must never write to the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias, cast

import structlog

from ottla_broker.metadata.history import Seen, lost_history
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.image_update import difference, updated
from ottla_broker.metadata.sections.cluster import CLUSTER, RECOVERIES
from ottla_broker.metadata.values import BadValue
from ottla_broker.metadata.waiting import wait_for_sign
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import Changed, MetadataStore, Revision, Snapshot, StoreError

_log = structlog.get_logger("ottla.metadata")

Subscriber: TypeAlias = Callable[[ClusterImage, ClusterImage], None]

#: Between two attempts to reach the store: doubles from the first to the last, and is spread by half.
BACKOFF_FIRST_S = 0.1
BACKOFF_LAST_S = 3.0


class LostHistory(Exception):
    """The store is behind what this broker has seen; the text says how, and what to do."""


class Metadata:
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        chance: Chance,
        *,
        seen: Seen | None = None,
        on_refusal: Callable[[str], None] | None = None,
    ) -> None:
        """`seen` is the broker's record on disk from an earlier incarnation."""
        self._store = store
        self._clock = clock
        self._chance = chance
        self._seen = seen or Seen()
        self._on_refusal = on_refusal
        self._image = ClusterImage(cluster_id=self._seen.cluster_id)
        self._loaded = False
        #: Set once the store has answered the watch.
        self._following = asyncio.Event()
        #: Attempts since the watch last delivered anything.
        self._failures = 0
        self._subscribers: list[Subscriber] = []
        #: Replaced at each new image; without waiters this costs nothing.
        self._news = asyncio.Event()
        #: One read of everything at a time.
        self._reading = asyncio.Lock()
        #: Why the store's state is not applied, or None.
        self.refusal: str | None = None

    @property
    def image(self) -> ClusterImage:
        return self._image

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Subscribe to new images; call the result to unsubscribe."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    async def wait_until(self, holds: Callable[[ClusterImage], bool], timeout_s: float) -> ClusterImage:
        """The first image for which `holds`; TimeoutError when it does not come in time."""
        deadline = self._clock.monotonic() + timeout_s
        while not holds(self._image):
            if not await wait_for_sign(self._news, self._clock, deadline - self._clock.monotonic()):
                raise TimeoutError(f"The image is at revision {self._image.revision} after {timeout_s:g} s.")
        return self._image

    async def wait_revision(self, revision: int, timeout_s: float) -> None:
        """Until the image shows what was written at `revision`; TimeoutError if it does not come in time."""
        await self.wait_until(lambda image: image.revision >= revision, timeout_s)

    async def refresh(self) -> ClusterImage:
        """Read everything now: the image then shows all that the store held when this was called.

        StoreError when the store is unavailable, LostHistory when it is behind what was seen.
        """
        async with self._reading:
            if self.refusal is not None:
                raise LostHistory(self.refusal)
            before = self._image
            snapshot = await self._store.scan("")
            self._check_history(before, snapshot)
            # If the watch was faster than this read, the image has all of it already.
            if not self._loaded or snapshot.revision >= self._image.revision:
                self._take_over(difference(self._image, snapshot))
                self._loaded = True
            return self._image

    def learn(self, revision: Revision) -> None:
        """Apply this broker's own change at once, if no other change can lie between it and the image.

        etcd checks a watch that starts in the past only every 100 ms for missed changes; a starting
        broker that has just registered would wait for that.
        """
        if self._loaded and revision.revision == self._image.revision + 1:
            self._take_over(revision)

    async def load(self) -> ClusterImage:
        """The first read; further calls return the current image."""
        return self._image if self._loaded else await self.refresh()

    async def following(self, timeout_s: float) -> bool:
        """Wait until the watch is established; return whether it is.

        etcd delivers at once only what happens after the watch is established, and checks for the rest every 100 ms;
        so call this before writing a change and waiting for it.
        """
        return await wait_for_sign(self._following, self._clock, timeout_s)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        fresh = self._loaded
        while True:
            try:
                if not fresh:
                    await self.refresh()
                fresh = False
                await self._follow()
            except StoreError as error:
                _log.warning("reading all metadata again", reason=str(error))
            except LostHistory as error:
                _log.error("metadata store is behind; its state is not applied", reason=str(error))
            pause_s = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2**self._failures)
            self._failures += 1
            await self._clock.sleep(pause_s * (0.5 + self._chance.fraction() / 2))

    async def _follow(self) -> None:
        # aclosing: the stream must end with this coroutine, not when the collector finds it.
        watch = cast("AsyncGenerator[Revision, None]", self._store.watch("", self._image.revision))
        async with aclosing(watch) as revisions:
            async for revision in revisions:
                self._failures = 0
                self._following.set()
                if any(isinstance(c, Changed) and c.entry.key == RECOVERIES.key for c in revision.changes):
                    raise StoreError("the store was recovered")
                # `refresh` may have been faster than the watch.
                if revision.changes and revision.revision > self._image.revision:
                    self._take_over(revision)

    def _check_history(self, before: ClusterImage, snapshot: Snapshot) -> None:
        """Refuse a store that is behind the disk's record, or behind the image from before the read."""
        kept = self._seen
        recoveries, revision = max((before.recoveries, before.revision), (kept.recoveries, kept.revision))
        seen = Seen(before.cluster_id or kept.cluster_id, revision, recoveries)
        found = _found(snapshot)
        refusal = lost_history(seen, found)
        if refusal is None and self._loaded and found.recoveries != before.recoveries:
            refusal = "The metadata store was recovered while this broker ran. Nothing is changed until its restart."
        if refusal is not None:
            self.refusal = refusal
            if self._on_refusal is not None:
                self._on_refusal(refusal)
            raise LostHistory(refusal)

    def _take_over(self, revision: Revision) -> None:
        old = self._image
        self._image, problems = updated(old, revision)
        for problem in problems:
            _log.error("invalid metadata value skipped", reason=problem)
        news, self._news = self._news, asyncio.Event()
        news.set()
        if revision.changes:
            for subscriber in tuple(self._subscribers):
                subscriber(old, self._image)


def _found(snapshot: Snapshot) -> Seen:
    """The store's cluster id, revision and recovery number."""
    entries = {e.key: e for e in snapshot.entries if e.key in (CLUSTER.key, RECOVERIES.key)}
    cluster, recoveries = entries.get(CLUSTER.key), entries.get(RECOVERIES.key)
    try:
        return Seen(
            "" if cluster is None else CLUSTER.decode(cluster),
            snapshot.revision,
            0 if recoveries is None else RECOVERIES.decode(recoveries),
        )
    except BadValue as error:
        raise StoreError(str(error)) from None
