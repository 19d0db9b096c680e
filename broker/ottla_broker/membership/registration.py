"""This broker's registration: a lease, kept alive, and `brokers/<id>` under it. [S]

A lease decides which broker gets work, never whose data is right; only epochs protect data (design rule 14).
`confirmed` says whether the lease is certainly alive, by this machine's monotonic clock and counted from
the sending of the last renewal that was answered.

Registering again keeps the incarnation: the controller sees that nothing happened. The broker may lose its
key while its lease lives, because other brokers found it dead and removed it (rule 15); so the image is watched,
and a missing key is put back after everything was read again.

Call `register` only while holding the locks of the log directories: then a registration with
one of these directories belongs to a dead predecessor, and may be removed at once instead of waiting for its
lease to expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import structlog

from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.metadata.values import BadValue
from ottla_broker.metadata.waiting import wait_for_sign
from ottla_broker.metadata.watcher import LostHistory, Metadata
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import (
    Branch,
    Changed,
    CreateRevisionIs,
    Delete,
    Entry,
    LeaseExpired,
    MetadataStore,
    Put,
    Revision,
    StoreError,
)

_log = structlog.get_logger("ottla.registration")

#: Pause between attempts while another broker holds the id, or the store is unavailable.
_RETRY_S = 0.5


class BrokerIdTaken(Exception):
    """Another live broker has this id; the text is a sentence for the operator."""


class Registration:
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        metadata: Metadata,
        broker: BrokerImage,
        *,
        ttl_s: int = 6,
        interval_s: float = 2.0,
    ) -> None:
        """`broker` describes this broker; `register` fills in its revision."""
        self._store = store
        self._clock = clock
        self._metadata = metadata
        self._ttl_s = ttl_s
        self._interval_s = interval_s
        self._lease = 0
        self._confirmed_until = float("-inf")
        self._gone = asyncio.Event()
        #: As registered: `revision` is the create revision of the key, 0 while there is none.
        self.broker = replace(broker, revision=0)

    @property
    def lease(self) -> int:
        """The lease of the registration, 0 while there is none."""
        return self._lease if self.broker.revision else 0

    @property
    def confirmed(self) -> bool:
        """Whether the lease is certainly alive now."""
        return self._clock.monotonic() < self._confirmed_until

    async def register(self, timeout_s: float) -> None:
        """Register. BrokerIdTaken if another broker keeps the id, StoreError if the store is unavailable."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            problem: Exception
            try:
                holder = await self._try_register()
                if holder is None:
                    return
                problem = BrokerIdTaken(_taken(holder))
            except LeaseExpired as error:
                self._lease, problem = 0, error
            except StoreError as error:
                problem = error
            if self._clock.monotonic() + _RETRY_S > deadline:
                raise problem
            await self._clock.sleep(_RETRY_S)

    async def run(self) -> None:
        """Keep the lease and the key until cancelled. BrokerIdTaken: another process is this broker now."""
        stop = self._metadata.subscribe(self._on_image)
        self._on_image(self._metadata.image, self._metadata.image)
        try:
            pause_s = self._interval_s
            while True:
                if await wait_for_sign(self._gone, self._clock, pause_s):
                    await self._come_back()
                else:
                    pause_s = self._interval_s if await self._renew() else _RETRY_S
        finally:
            stop()

    async def announce_stop(self) -> None:
        """Ask the controller to move this broker's leaderships: the first step of a graceful stop."""
        await self._announce(replace(self.broker, stopping=True))

    async def announce_offline(self, offline: Mapping[UUID, tuple[int, ...]]) -> None:
        """Announce partitions that this broker cannot serve, so that other brokers lead them."""
        await self._announce(replace(self.broker, offline=offline))

    async def _announce(self, broker: BrokerImage) -> None:
        """Update the value of the registration. A broker that is not registered announces it when it registers
        again."""
        self.broker = broker
        ours = self.broker.revision
        if ours and self._lease:
            key = BROKERS.key(self.broker.id)
            put = Put(key, BROKERS.encode(self.broker), self._lease)
            await self._store.transact((CreateRevisionIs(key, ours),), [Branch((), (put,))])

    async def withdraw(self) -> None:
        """Revoke the lease, with all its keys: the last step of a graceful stop."""
        lease, self._lease = self._lease, 0
        self.broker = replace(self.broker, revision=0)
        self._confirmed_until = float("-inf")
        if lease:
            await self._store.revoke_lease(lease)

    # ------------------------------------------------------------------ staying

    async def _renew(self) -> bool:
        """Whether the store answered; if not, the next attempt follows at once."""
        sent = self._clock.monotonic()
        try:
            self._confirmed_until = sent + await self._store.keep_alive(self._lease)
        except LeaseExpired:
            _log.warning("broker lease expired", lease=f"{self._lease:x}")
            self._lease = 0
            self._gone.set()
        except StoreError as error:
            _log.warning("broker lease not renewed", reason=str(error), confirmed=self.confirmed)
            return False
        return True

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """The key is missing in a newer image than the one that showed it: another broker removed it."""
        ours = self.broker.revision
        if ours and new.revision >= ours:
            found = new.brokers.get(self.broker.id)
            if found is None or found.revision != ours:
                self._gone.set()

    async def _come_back(self) -> None:
        self.broker = replace(self.broker, revision=0)
        try:
            await self._metadata.refresh()
            if self._lease:
                await self._renew()
            await self.register(self._ttl_s * 2)
        except (StoreError, LostHistory) as error:
            _log.warning("broker not registered; retrying", reason=str(error))
            await self._clock.sleep(_RETRY_S)
            return
        self._gone.clear()
        self._on_image(self._metadata.image, self._metadata.image)

    # ------------------------------------------------------------------ registering

    async def _try_register(self) -> Entry | None:
        """None when registered, else the conflicting entry of another broker."""
        key = BROKERS.key(self.broker.id)
        holder = await self._store.get(key)
        if holder is not None:
            found = _decoded(holder)
            if found.incarnation == self.broker.incarnation and holder.lease == self._lease:
                self._registered(holder.create_revision)  # The reply to this broker's write was lost.
                return None
            if not self._is_predecessor(found):
                return holder
            await self._bury(holder, found)
        if not self._lease:
            sent = self._clock.monotonic()
            self._lease = await self._store.grant_lease(self._ttl_s)
            self._confirmed_until = sent + self._ttl_s
        put = Put(key, BROKERS.encode(self.broker), self._lease)
        outcome = await self._store.transact((), [Branch((CreateRevisionIs(key, 0),), (put,))])
        if outcome.all_taken:
            self._registered(outcome.revision)
            made = Entry(key, put.value, outcome.revision, outcome.revision, put.lease)
            self._metadata.learn(Revision(outcome.revision, (Changed(made),)))
            return None
        return await self._store.get(key)

    def _registered(self, revision: int) -> None:
        self.broker = replace(self.broker, revision=revision)
        _log.info("broker registered", broker=self.broker.id, revision=revision)

    def _is_predecessor(self, found: BrokerImage) -> bool:
        """This broker under an older lease, or a dead process: this broker holds the lock of a directory that it
        used."""
        same = found.incarnation == self.broker.incarnation
        return same or bool(set(found.directories) & set(self.broker.directories))

    async def _bury(self, holder: Entry, found: BrokerImage) -> None:
        """Remove a predecessor's key, and the controller key if it held that (rules 15 and 16)."""
        branches = [Branch((CreateRevisionIs(holder.key, holder.create_revision),), (Delete(holder.key),))]
        controller = await self._store.get(CONTROLLER.key)
        if controller is not None and _controller_incarnation(controller) == found.incarnation:
            life = CreateRevisionIs(CONTROLLER.key, controller.create_revision)
            branches.append(Branch((life,), (Delete(CONTROLLER.key),)))
        await self._store.transact((), branches)
        _log.info("registration of an earlier incarnation removed", broker=found.id)


def _decoded(entry: Entry) -> BrokerImage:
    try:
        return BROKERS.decode(entry)
    except BadValue as error:
        raise StoreError(str(error)) from None


def _controller_incarnation(entry: Entry) -> UUID | None:
    try:
        return CONTROLLER.decode(entry).incarnation
    except BadValue:
        return None  # It belongs to another broker; its lease will expire.


def _taken(holder: Entry) -> str:
    found = _decoded(holder)
    where = ", ".join(f"{e.host}:{e.port}" for e in found.endpoints) or "an unknown address"
    return (
        f"Broker id {found.id} is taken by a live broker at {where}: "
        "give this broker another id, or stop the other one first."
    )
